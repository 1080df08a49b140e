#include "data/transform/image_workspace.h"

namespace headrace::detail {

std::int64_t ImageWorkspace::bytes() const noexcept {
  return static_cast<std::int64_t>(decoded.capacity() + rows.capacity() + resized.capacity() +
                                   entropy.record.capacity() +
                                   entropy.index.positions.capacity() * sizeof(codec::EntropyPosition));
}

void ImageWorkspace::clear() {
  // "= {}" would assign an empty list, which keeps the memory.
  for (auto* buffer : {&decoded, &rows, &resized, &entropy.record}) *buffer = std::vector<std::uint8_t>();
  entropy.index.positions = std::vector<codec::EntropyPosition>();
  decoder = codec::Decoder();
  resizer = transform::Resizer();
}

}  // namespace headrace::detail
