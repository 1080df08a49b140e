// The loss of a recipe's network.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <type_traits>
#include <vector>

namespace headrace {

// Of torch.nn: CrossEntropyLoss, BCEWithLogitsLoss and MSELoss of the logits; the same in training and in evaluation.
enum class LossName { cross_entropy, bce, mse };
constexpr auto choices(LossName) {
  return std::array{Choice<LossName>{LossName::cross_entropy, "cross_entropy"}, Choice<LossName>{LossName::bce, "bce"},
                    Choice<LossName>{LossName::mse, "mse"}};
}

struct LossOptions {
  LossName name = LossName::cross_entropy;
  double label_smoothing = 0.0;         // Share of the target that is spread evenly over all classes.
  std::vector<double> class_weights{};  // Of cross_entropy, as torch's `weight`: one a class; empty: all are 1.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, LossOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "Loss of the logits: cross_entropy; or, of a target that is 1 for the label's class and 0 for the others, bce, "
        "binary cross-entropy class by class, or mse, the mean squared error.");
  visit("label_smoothing", o.label_smoothing, Range<double>{0.0, 1.0},
        "Share of the target that is spread evenly over all classes (Szegedy and others, 2016); 0.1 is usual.");
  visit("class_weights", o.class_weights, Range<double>{0.0, 1e6},
        "Weights of the classes in cross_entropy, one a class, as torch's weight: the loss of a batch is the mean "
        "weighted by those of its labels. Empty: all classes count alike.");
}

}  // namespace headrace
