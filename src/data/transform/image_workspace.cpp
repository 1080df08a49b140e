#include "data/transform/image_workspace.h"

namespace headrace::detail {

std::int64_t ImageWorkspace::bytes() const noexcept {
  std::size_t lists = 0;
  for (const auto& tile : tiles) lists += tile.capacity();
  for (const Sample& output : outputs) lists += static_cast<std::size_t>(output.bytes());
  return static_cast<std::int64_t>(lists + decoded.capacity() + rows.capacity() + resized.capacity() +
                                   between[0].capacity() + between[1].capacity() + entropy.record.capacity() +
                                   entropy.index.positions.capacity() * sizeof(codec::EntropyPosition));
}

void ImageWorkspace::trim() {
  if (bytes() > kKeptMax) free_between();
  if (bytes() > kKeptMax) clear();
}

void ImageWorkspace::free_between() {
  for (auto& buffer : between) buffer = std::vector<std::byte>();  // "= {}" would keep the memory.
  tiles = std::vector<std::vector<std::byte>>();
}

void ImageWorkspace::clear() {
  free_between();
  for (auto* buffer : {&decoded, &rows, &resized, &entropy.record}) *buffer = std::vector<std::uint8_t>();
  outputs = std::vector<Sample>();
  entropy.index.positions = std::vector<codec::EntropyPosition>();
  decoder = codec::Decoder();
  resizer = transform::Resizer();
}

}  // namespace headrace::detail
