// Operations that decide which part of an image is taken, and how large it is. Names, parameters, defaults and meaning
// are those of torchvision.transforms.v2, but that an empty `padding` and a max_size of 0 stand for None.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace::transforms {

struct Resize {
  static constexpr const char* kName = "Resize";
  static constexpr const char* kSentence = "Resizes the image.";

  std::vector<std::int64_t> size{};  // One number: the shorter side becomes it; two: height and width.
  std::string interpolation = "bilinear";
  std::int64_t max_size = 0;  // Of the longer side; 0: no bound.
  bool antialias = true;

  friend bool operator==(const Resize&, const Resize&) = default;
};

struct CenterCrop {
  static constexpr const char* kName = "CenterCrop";
  static constexpr const char* kSentence = "Takes the middle of the image.";

  std::vector<std::int64_t> size{};  // One number: a square; two: height and width. So in the two that follow.

  friend bool operator==(const CenterCrop&, const CenterCrop&) = default;
};

struct RandomCrop {
  static constexpr const char* kName = "RandomCrop";
  static constexpr const char* kSentence = "Takes a part of the image, at a place that is drawn for each sample.";
  static constexpr bool kRandom = true;

  std::vector<std::int64_t> size{};
  std::vector<std::int64_t> padding{};  // None; all sides; left and right, top and bottom; left, top, right, bottom.
  bool pad_if_needed = false;
  double fill = 0;
  std::string padding_mode = "constant";

  friend bool operator==(const RandomCrop&, const RandomCrop&) = default;
};

struct RandomResizedCrop {
  static constexpr const char* kName = "RandomResizedCrop";
  static constexpr const char* kSentence =
      "Takes a rectangle whose area, shape and place are drawn for each sample, and resizes it.";
  static constexpr bool kRandom = true;

  std::vector<std::int64_t> size{};
  std::vector<double> scale{0.08, 1.0};                 // Share of the image's area, from and to.
  std::vector<double> ratio{0.75, 1.3333333333333333};  // Width / height, from and to.
  std::string interpolation = "bilinear";
  bool antialias = true;

  friend bool operator==(const RandomResizedCrop&, const RandomResizedCrop&) = default;
};

struct Pad {
  static constexpr const char* kName = "Pad";
  static constexpr const char* kSentence = "Adds pixels around the image.";

  std::vector<std::int64_t> padding{};  // As RandomCrop's, at least one number.
  double fill = 0;
  std::string padding_mode = "constant";

  friend bool operator==(const Pad&, const Pad&) = default;
};

struct RandomHorizontalFlip {
  static constexpr const char* kName = "RandomHorizontalFlip";
  static constexpr const char* kSentence =
      "Flips the image horizontally with probability p. Wrong for text and digits.";
  static constexpr bool kRandom = true;

  double p = 0.5;

  friend bool operator==(const RandomHorizontalFlip&, const RandomHorizontalFlip&) = default;
};

inline constexpr Range<std::int64_t> kResizedSize{1, 8192}, kCropSize{1, 4096}, kPixelsAdded{0, 4096};
inline constexpr const char* kSizeOfCrop = "Pixels: one number is a square, two are height and width.";
inline constexpr const char* kInterpolation = "Interpolation mode: bilinear.";
inline constexpr const char* kAntialias = "Apply antialiasing where the image is made smaller.";
inline constexpr const char* kPadding =
    "Pixels added: one number for each side; two for left and right, and for top and bottom; four for left, top, right "
    "and bottom.";
inline constexpr const char* kFill = "The value of each pixel that is added.";
inline constexpr const char* kPaddingMode = "Which pixels are added: constant, those of fill.";

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Resize>
void describe(Visitor& visit, Options& o) {
  visit("size", o.size, kRequired, kResizedSize,
        "Pixels: one number for the shorter side, the other follows; two for height and width.");
  visit("interpolation", o.interpolation, kInterpolation);
  visit("max_size", o.max_size, Range<std::int64_t>{0, 65535},
        "Bound of the longer side, in pixels, where size is one number; 0 sets none.");
  visit("antialias", o.antialias, kAntialias);
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, CenterCrop>
void describe(Visitor& visit, Options& o) {
  visit("size", o.size, kRequired, kCropSize, kSizeOfCrop);
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, RandomCrop>
void describe(Visitor& visit, Options& o) {
  visit("size", o.size, kRequired, kCropSize, kSizeOfCrop);
  visit("padding", o.padding, kPixelsAdded, kPadding);
  visit("pad_if_needed", o.pad_if_needed, "Pad images that are smaller than size.");
  visit("fill", o.fill, kFill);
  visit("padding_mode", o.padding_mode, kPaddingMode);
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, RandomResizedCrop>
void describe(Visitor& visit, Options& o) {
  visit("size", o.size, kRequired, kCropSize, kSizeOfCrop);
  visit("scale", o.scale, Range<double>{1e-6, 1.0}, "Lower and upper bound of the crop's share of the image's area.");
  visit("ratio", o.ratio, Range<double>{0.01, 100.0},
        "Lower and upper bound of the crop's aspect ratio, width / height.");
  visit("interpolation", o.interpolation, kInterpolation);
  visit("antialias", o.antialias, kAntialias);
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Pad>
void describe(Visitor& visit, Options& o) {
  visit("padding", o.padding, kRequired, kPixelsAdded, kPadding);
  visit("fill", o.fill, kFill);
  visit("padding_mode", o.padding_mode, kPaddingMode);
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, RandomHorizontalFlip>
void describe(Visitor& visit, Options& o) {
  visit("p", o.p, Range<double>{0.0, 1.0}, "Probability.");
}

}  // namespace headrace::transforms
