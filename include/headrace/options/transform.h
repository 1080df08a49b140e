// How a stored image becomes the tensor a network reads.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headrace {

enum class Crop { center, random, random_resized };
constexpr auto choices(Crop) {
  return std::array{Choice<Crop>{Crop::center, "center"}, Choice<Crop>{Crop::random, "random"},
                    Choice<Crop>{Crop::random_resized, "random_resized"}};
}

// What a pixel of a batch is: a normalised number, or the stored value as it is.
enum class PixelType { f32, bf16, u8 };
constexpr auto choices(PixelType) {
  return std::array{Choice<PixelType>{PixelType::f32, "float32"}, Choice<PixelType>{PixelType::bf16, "bfloat16"},
                    Choice<PixelType>{PixelType::u8, "uint8"}};
}

// Whether an image lies in memory channel by channel or pixel by pixel.
enum class PixelLayout { nchw, nhwc };
constexpr auto choices(PixelLayout) {
  return std::array{Choice<PixelLayout>{PixelLayout::nchw, "nchw"}, Choice<PixelLayout>{PixelLayout::nhwc, "nhwc"}};
}

struct TransformOptions {
  std::int64_t size = 0;     // Height and width of the tensor's images; 0: as stored, which is then one size for all.
  Crop crop = Crop::center;  // Of training images, with size > 0. Evaluation always: resize, then crop the center.
  std::int64_t resize = 0;   // Shorter side before a center or random crop; 0: size x 8/7, rounded (256 for 224).
  std::vector<double> scale{0.08, 1.0};                 // random_resized: share of the image's area, from and to.
  std::vector<double> ratio{0.75, 1.3333333333333333};  // random_resized: width / height, from and to.
  std::int64_t pad = 0;  // Pixels added on each side, then cropped back at a random place; 0: no crop. Augments.
  double flip_probability = 0.0;  // Of a horizontal flip, drawn a sample. Augments; wrong for text and digits.
  std::vector<double> mean{0.0};  // Of each channel, on the 0..1 scale; one value serves all channels.
  std::vector<double> std{1.0};   // Divides after the mean is taken off.
  PixelType dtype = PixelType::f32;
  PixelLayout layout = PixelLayout::nchw;  // In memory; a batch's shape is (N, C, H, W) with either.

  // Shorter side that a center or random crop is taken from.
  std::int64_t resized_side() const noexcept { return resize > 0 ? resize : (16 * size + 7) / 14; }
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TransformOptions>
void describe(Visitor& visit, Options& o) {
  visit("size", o.size, Range<std::int64_t>{0, 4096},
        "Height and width in pixels that every image is cropped and resized to; 0 leaves images as stored, which "
        "must then all have one size.");
  visit("crop", o.crop,
        "Which part of a training image becomes the size x size pixels: its center or a random place after a resize, "
        "or a random rectangle of random size. Evaluation always resizes and takes the center.");
  visit("resize", o.resize, Range<std::int64_t>{0, 8192},
        "Shorter side in pixels before a center or random crop, at least size; 0 is size x 8/7, 256 for 224.");
  visit("scale", o.scale, Range<double>{1e-6, 1.0},
        "Lower and upper bound of the share of the image's area that crop = random_resized takes.");
  visit("ratio", o.ratio, Range<double>{0.01, 100.0},
        "Lower and upper bound of the aspect ratio, width / height, of what crop = random_resized takes.");
  visit("pad", o.pad, Range<std::int64_t>{0, 64},
        "Zero pixels added on each side before a random crop back to size (training only).");
  visit("flip_probability", o.flip_probability, Range<double>{0.0, 1.0},
        "Probability of a horizontal flip (training only).");
  visit("mean", o.mean, Range<double>{-1e3, 1e3},
        "Mean of each channel on the 0 to 1 scale; one value serves all channels.");
  visit("std", o.std, Range<double>{1e-6, 1e3}, "Standard deviation of each channel; one value serves all channels.");
  visit("dtype", o.dtype,
        "Type of a batch's images: float32, or bfloat16, which is float32 rounded to the nearest, both normalised; "
        "uint8 is "
        "the pixels as they are, 0 to 255. A network of a recipe reads float32.");
  visit("layout", o.layout,
        "Order of a batch in memory: nchw channel by channel, nhwc pixel by pixel, which PyTorch calls channels-last.");
}

}  // namespace headrace
