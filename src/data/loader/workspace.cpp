#include "data/loader/detail/workspace.h"

namespace headrace::detail {

std::int64_t Workspace::bytes() const noexcept {
  std::int64_t total = images.bytes();
  for (const auto& file : files) total += static_cast<std::int64_t>(file.capacity());
  return total;
}

void Workspace::trim() {
  if (bytes() > kKeptMax) clear();
}

void Workspace::clear() {
  for (auto& file : files) file = std::vector<std::uint8_t>();  // "= {}" would keep the memory.
  images.clear();
}

}  // namespace headrace::detail
