// What `headrace eval` reads, and what it demands.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <type_traits>

namespace headrace {

enum class EvalSplit { automatic, val, test };
constexpr auto choices(EvalSplit) {
  return std::array{Choice<EvalSplit>{EvalSplit::automatic, "auto"}, Choice<EvalSplit>{EvalSplit::val, "val"},
                    Choice<EvalSplit>{EvalSplit::test, "test"}};
}

struct EvalOptions {
  EvalSplit split = EvalSplit::automatic;  // What `headrace eval` reads.
  double at_least = 0.0;                   // Accuracy below which it exits with 3.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, EvalOptions>
void describe(Visitor& visit, Options& o) {
  visit("split", o.split, "What headrace eval reads: val, test, or auto, which is test where there is one, else val.");
  visit("at_least", o.at_least, Range<double>{0.0, 1.0}, "Accuracy below which headrace eval exits with 3.");
}

}  // namespace headrace
