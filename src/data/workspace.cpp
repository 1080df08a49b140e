#include "data/detail/workspace.h"

namespace headrace::detail {

std::int64_t Workspace::bytes() const noexcept {
  std::size_t total = decoded.capacity() + rows.capacity() + resized.capacity() + entropy.record.capacity() +
                      entropy.index.positions.capacity() * sizeof(image::EntropyPosition);
  for (const auto& file : files) total += file.capacity();
  return static_cast<std::int64_t>(total);
}

void Workspace::trim() {
  if (bytes() > kKeptMax) clear();
}

void Workspace::clear() {
  // "= {}" would assign an empty list, which keeps the memory.
  for (auto& file : files) file = std::vector<std::uint8_t>();
  for (auto* buffer : {&decoded, &rows, &resized, &entropy.record}) *buffer = std::vector<std::uint8_t>();
  entropy.index.positions = std::vector<image::EntropyPosition>();
  decoder = image::Decoder();
  resizer = image::Resizer();
}

}  // namespace headrace::detail
