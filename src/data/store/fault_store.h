// A store that fails on request, for tests of what stands above one. Every wrapper of a store has this form.
#pragma once

#include <headrace/error.h>
#include <headrace/store.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace headrace {

// What happens to one get.
struct StoreFault {
  std::optional<ErrorCode> code{};        // Thrown in place of the bytes, with the key's text.
  std::int64_t lost = 0;                  // So many bytes are missing at the end, of those there are.
  std::optional<std::int64_t> flipped{};  // This one of the bytes that are left has its lowest bit flipped.
};

// Asked by each get, in its thread and before it reads: a get is as slow as the answer.
using ChooseFault = std::function<StoreFault(std::string_view key, const ByteRange& range)>;

// `inner`, whose gets have the faults that `choose` gives. Thread-safe if `choose` is.
std::unique_ptr<const Store> with_faults(std::unique_ptr<const Store> inner, ChooseFault choose);

}  // namespace headrace
