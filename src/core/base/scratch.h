// Memory that is kept from use to use, and written before it is read.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace headrace {

// The first `size` values of `kept`, which grows when it is smaller; it then loses what it held, so that the old memory
// and the new are never taken together.
template <class Value>
std::span<Value> scratch_of(std::vector<Value>& kept, std::integral auto size) {
  const auto count = static_cast<std::size_t>(size);
  if (kept.size() < count) {
    std::vector<Value>().swap(kept);
    kept.resize(count);
  }
  return std::span{kept}.first(count);
}

}  // namespace headrace
