#include "data/transform/pixel_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace::transform {

void copy_rectangle(const ImageView& from, int y, int x, const ImageTarget& to) noexcept {
  const std::size_t pixel = to.image.pixel_bytes();
  const Geometry &in = from.image.size, &out = to.image.size;
  const int begin = std::clamp(-x, 0, out.width), end = std::clamp(in.width - x, begin, out.width);
  for (int i = 0; i < out.height; ++i) {
    std::byte* const row = to.at(i, 0);
    if (y + i < 0 || y + i >= in.height || begin == end) {
      std::memset(row, 0, static_cast<std::size_t>(out.width) * pixel);
      continue;
    }
    std::memset(row, 0, static_cast<std::size_t>(begin) * pixel);
    std::memcpy(to.at(i, begin), from.at(y + i, x + begin), static_cast<std::size_t>(end - begin) * pixel);
    std::memset(to.at(i, end), 0, static_cast<std::size_t>(out.width - end) * pixel);
  }
}

void copy_mirrored(const ImageView& from, const ImageTarget& to) noexcept {
  const std::size_t pixel = to.image.pixel_bytes();
  const Geometry& size = to.image.size;
  for (int i = 0; i < size.height; ++i) {
    for (int j = 0; j < size.width; ++j) std::memcpy(to.at(i, j), from.at(i, size.width - 1 - j), pixel);
  }
}

}  // namespace headrace::transform
