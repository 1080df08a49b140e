// The loss of a recipe's network.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <type_traits>

namespace headrace {

// Cross-entropy of the logits, as torch.nn.CrossEntropyLoss; the same in training and in evaluation.
struct LossOptions {
  double label_smoothing = 0.0;  // Share of the target that is spread evenly over all classes.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, LossOptions>
void describe(Visitor& visit, Options& o) {
  visit("label_smoothing", o.label_smoothing, Range<double>{0.0, 1.0},
        "Share of the target that is spread evenly over all classes (Szegedy and others, 2016); 0.1 is usual.");
}

}  // namespace headrace
