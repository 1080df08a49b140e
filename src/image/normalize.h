// One pass from stored uint8 pixels to the network's float32: pad, crop, flip, scale to 0..1, normalise, HWC to CHW.
#pragma once

#include <cstdint>
#include <span>

namespace headrace::image {

// Where one sample's crop lies and how its pixels map. Output has the picture's own size.
struct NormalizeGeometry {
  int height = 0;  // Of the picture and of the output.
  int width = 0;
  int channels = 0;  // 1 to 4.
  int offset_y = 0;  // Output (y, x) reads picture (y + offset_y, x + offset_x); outside the picture it is the value 0.
  int offset_x = 0;
  bool flip = false;  // Applied after the crop.
};

// Float value of each stored value, a channel: ((v / 255) - mean) / deviation in float32, the operations in that order,
// so that results equal torchvision's ToTensor and Normalize bit for bit.
struct NormalizeTable {
  float value[4][256];
};
NormalizeTable make_normalize_table(std::span<const double> mean, std::span<const double> deviation, int channels);

// pixels: H*W*C uint8 (HWC). out: C*H*W float32 (CHW). No allocation, no threads.
void normalize(std::span<const std::uint8_t> pixels, const NormalizeGeometry& geometry, const NormalizeTable& table,
               std::span<float> out) noexcept;

}  // namespace headrace::image
