// XXH3, 64 bits: checksums against accidents, not against attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace {

std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept;
std::string hex(std::uint64_t value);  // 16 lower-case digits.

// The hash of a stream in pieces; equal to xxh3 of the whole.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
