#include "data/detail/workspace.h"

namespace headrace::detail {

std::int64_t Workspace::bytes() const noexcept {
  std::size_t total = decoded.capacity() + cut.capacity() + resized.capacity();
  for (const auto& file : files) total += file.capacity();
  return static_cast<std::int64_t>(total);
}

void Workspace::trim() noexcept {
  if (bytes() > kKeptMax) clear();
}

void Workspace::clear() noexcept {
  // "= {}" would assign an empty list, which keeps the memory.
  for (auto& file : files) file = std::vector<std::uint8_t>();
  for (auto* buffer : {&decoded, &cut, &resized}) *buffer = std::vector<std::uint8_t>();
}

}  // namespace headrace::detail
