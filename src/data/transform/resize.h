// Resizing with an antialiased triangle filter: "bilinear" of Pillow, and of torchvision with antialias=True.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "data/transform/normalize.h"

namespace headrace::transform {

// One axis of a resize. All in pixels; sizes at least 1.
struct ResizeAxis {
  int begin = 0;  // The stretch of the image that is resized. No tap leaves it, as if it had been cut out first.
  int size = 0;
  int resized = 0;    // Its length afterwards; larger than `size` enlarges.
  int out_begin = 0;  // The part of the resized stretch that is wanted: within 0 .. resized.
  int out_size = 0;
  // The pixels at hand are of an image so many times smaller, each the mean of `divisor` of this one's; begin and size
  // are still of the large one, and may lie within a pixel.
  int divisor = 1;

  bool operator==(const ResizeAxis&) const = default;
};

struct Stretch {
  int begin = 0;
  int size = 0;
};

// The image's pixels that the wanted part reads, at hand; inside the axis' stretch, or touched by it.
Stretch needed(const ResizeAxis& axis) noexcept;

// Rows of uint8 values. `stride` values lie from the beginning of one to that of the next; 0: nothing between them.
struct PixelRows {
  template <class Values>
  requires std::convertible_to<const Values&, std::span<const std::uint8_t>> PixelRows(const Values& rows,
                                                                                       std::ptrdiff_t apart = 0)
      : values(rows), stride(apart) {}

  std::span<const std::uint8_t> values;  // To the last value of the last row.
  std::ptrdiff_t stride;
};

// Keeps weights and scratch between images; allocates only when an image needs more of them than any before. For one
// thread at a time.
class Resizer {
 public:
  Resizer();
  ~Resizer();
  Resizer(Resizer&&) noexcept;
  Resizer& operator=(Resizer&&) noexcept;

  // pixels: HWC uint8, needed(vertical).size rows of needed(horizontal).size pixels. out: vertical.out_size rows of
  // horizontal.out_size pixels in `form`, the last column first with `flip`; may not overlap `pixels`. channels: 1
  // to 4.
  //
  // Taps and weights are those of Pillow's resampling (its Resample.c), in integers of 16 bits as PyTorch's antialiased
  // interpolation of uint8, which torchvision calls, has them; sums are exact. Values are rounded to the nearest,
  // between the axes to 7 bits of fraction (fewer when columns become more than 4 times fewer, 1 from 128 times on).
  // Pillow and torchvision keep no fraction there, which moves a value by at most 1. Every instruction set gives the
  // same bits. Costs about rows x columns of the smaller of input and output times 2 x scale.
  void resize(const PixelRows& pixels, const ResizeAxis& vertical, const ResizeAxis& horizontal, int channels,
              bool flip, const PixelForm& form, std::span<std::byte> out);
  // To HWC uint8.
  void resize(const PixelRows& pixels, const ResizeAxis& vertical, const ResizeAxis& horizontal, int channels,
              std::span<std::uint8_t> out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::transform
