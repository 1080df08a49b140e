// Stored uint8 pixels to what a batch holds: pad, crop, flip, scale to 0..1, normalise, layout and type in one pass.
#pragma once

#include <headrace/options/transform.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::transform {

// Where one sample's crop lies and how its pixels map. Output has the image's own size.
struct NormalizeGeometry {
  int height = 0;  // Of the image and of the output.
  int width = 0;
  int channels = 0;  // 1 to 4.
  int offset_y = 0;  // Output (y, x) reads image (y + offset_y, x + offset_x); outside the image it is the value 0.
  int offset_x = 0;
  bool flip = false;  // Applied after the crop.
};

// Float value of each stored value, a channel: ((v / 255) - mean) / deviation in float32, the operations in that order,
// so that results equal torchvision's ToTensor and Normalize bit for bit.
struct NormalizeTable {
  static constexpr int kRepeats = 16;  // Floats of a vector, at most.

  float value[4][256];

  // The same by arithmetic, for the kernels: of each value of kRepeats pixels.
  int channels;
  alignas(64) float mean[4 * kRepeats];
  alignas(64) float deviation[4 * kRepeats];
  alignas(64) float reciprocal[4 * kRepeats];  // Of the deviation.
  bool exact;  // Products with reciprocals, corrected by what they leave, have the quotients' bits for every value.
};
// Error{invalid_argument}: neither one value nor one a channel, or one that is no number to normalise by.
void check_normalization(std::span<const double> mean, std::span<const double> deviation, int channels);
// Errors likewise.
NormalizeTable make_normalize_table(std::span<const double> mean, std::span<const double> deviation, int channels);

// What is written of an image.
struct PixelForm {
  PixelType type = PixelType::u8;
  PixelLayout layout = PixelLayout::nhwc;
  const NormalizeTable* table = nullptr;  // Of f32, and of bf16, which is f32 rounded to the nearest; u8 is as stored.
};
std::size_t bytes_of(PixelType type) noexcept;

// pixels: H*W*C uint8 (HWC). out: as many values in `form`, C*H*W or H*W*C. No allocation, no threads.
void normalize(std::span<const std::uint8_t> pixels, const NormalizeGeometry& geometry, const PixelForm& form,
               std::span<std::byte> out) noexcept;

// A part of an image whose values lie as its form has them, but stored ones: in planes, or pixel by pixel.
struct ArrangedRows {
  const std::uint8_t* values = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t plane_stride = 0;  // From one channel to the next of a row; not looked at where they lie side by side.
  int first_row = 0;                // Of the image.
  int rows = 0;
};

// Writes them to their place in `out`, which is the whole image's. No allocation, no threads.
void write_rows(const ArrangedRows& arranged, int height, int width, int channels, const PixelForm& form,
                std::byte* out) noexcept;

// Float32 numbers of whole pixels (HWC), `type` f32 or bf16, rounded to the nearest, in the layout. No allocation, no
// threads.
void write_numbers(std::span<const float> pixels, int channels, PixelType type, PixelLayout layout,
                   std::span<std::byte> out) noexcept;

}  // namespace headrace::transform
