#include <headrace/sample.h>

namespace headrace {

void Sample::release() noexcept {
  clear();
  for (auto& buffer : buffers_) buffer = std::vector<std::uint8_t>();  // "= {}" would keep the memory.
}

std::int64_t Sample::bytes() const noexcept {
  std::int64_t total = 0;
  for (const auto& buffer : buffers_) total += static_cast<std::int64_t>(buffer.capacity());
  return total;
}

}  // namespace headrace
