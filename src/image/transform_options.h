// How a stored picture becomes the tensor a network reads.
#pragma once

#include <headrace/options.h>

namespace headrace {

struct TransformOptions {
  std::int64_t pad = 0;  // Pixels added on each side, then cropped back at a random place; 0: no crop. Augments.
  double flip_probability = 0.0;       // Of a horizontal flip, drawn a sample. Augments; wrong for text and digits.
  std::vector<double> mean{0.0};       // Of each channel, on the 0..1 scale; one value serves all channels.
  std::vector<double> deviation{1.0};  // Divides after the mean is taken off.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TransformOptions>
void describe(Visitor& visit, Options& o) {
  visit("pad", o.pad, Range<std::int64_t>{0, 64},
        "Zero pixels added on each side before a random crop back to size (training only).");
  visit("flip_probability", o.flip_probability, Range<double>{0.0, 1.0},
        "Probability of a horizontal flip (training only).");
  visit("mean", o.mean, Range<double>{-1e3, 1e3},
        "Mean of each channel on the 0 to 1 scale; one value serves all channels.");
  visit("deviation", o.deviation, Range<double>{1e-6, 1e3},
        "Standard deviation of each channel; one value serves all channels.");
}

}  // namespace headrace
