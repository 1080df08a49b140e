// Operations on the value of each pixel, wherever it lies. Names, parameters, defaults and meaning are those of
// torchvision.transforms.v2.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace::transforms {

struct ToDtype {
  static constexpr const char* kName = "ToDtype";
  static constexpr const char* kSentence =
      "Changes the type of the pixels; without it they stay uint8. bfloat16 is rounded last, behind a Normalize that "
      "follows.";

  std::string dtype{};  // "float32", "bfloat16" or "uint8".
  bool scale = false;   // uint8 0 to 255 becomes 0 to 1.

  friend bool operator==(const ToDtype&, const ToDtype&) = default;
};

struct Normalize {
  static constexpr const char* kName = "Normalize";
  static constexpr const char* kSentence = "Subtracts the mean of each channel and divides by its standard deviation.";

  std::vector<double> mean{};
  std::vector<double> std{};

  friend bool operator==(const Normalize&, const Normalize&) = default;
};

struct RandomGrayscale {
  static constexpr const char* kName = "RandomGrayscale";
  static constexpr const char* kSentence =
      "Converts to grayscale with probability p: each channel becomes 0.2989 red + 0.587 green + 0.114 blue.";
  static constexpr bool kRandom = true;

  double p = 0.1;

  friend bool operator==(const RandomGrayscale&, const RandomGrayscale&) = default;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ToDtype>
void describe(Visitor& visit, Options& o) {
  visit("dtype", o.dtype, kRequired, "float32, bfloat16 or uint8.");
  visit("scale", o.scale, "Scale 0 to 255 to 0 to 1.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Normalize>
void describe(Visitor& visit, Options& o) {
  visit("mean", o.mean, kRequired, Range<double>{-1e3, 1e3},
        "Mean of each channel, of the values as they come; one serves all channels.");
  visit("std", o.std, kRequired, Range<double>{1e-6, 1e3},
        "Standard deviation of each channel; one serves all channels.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, RandomGrayscale>
void describe(Visitor& visit, Options& o) {
  visit("p", o.p, Range<double>{0.0, 1.0}, "Probability.");
}

}  // namespace headrace::transforms
