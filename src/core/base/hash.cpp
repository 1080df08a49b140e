#include "core/base/hash.h"

#include <fmt/format.h>

// The streaming state as a plain member instead of a second allocation behind a C pointer.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

namespace headrace {

struct Xxh3Stream::State {
  XXH3_state_t xxh3;
};

std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}
Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::uint64_t Xxh3Stream::digest() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

}  // namespace headrace
