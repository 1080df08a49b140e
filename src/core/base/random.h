// Counter-based random numbers: the value depends on the key and the counter alone, so any thread can draw any
// sample's.
//
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <headrace/random.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept;

// A permutation of 0 .. size-1 keyed by (seed, epoch), computed per element without an array: a Feistel network of
// eight rounds on the next power of two, at least 256, with cycle walking (Black and Rogaway 2002); its round keys are
// Philox's, its round function is a multiplicative hash. Thread-safe. 100 bytes; an element costs about 30 ns, at most
// twice that on average just above a power of two.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) noexcept;
  // Each `stream` is another permutation of the same key.
  std::int64_t operator()(std::int64_t position, std::int64_t stream = 0) const noexcept;

 private:
  static constexpr std::size_t kRounds = 8;

  std::uint64_t size_;
  int low_bits_;  // The halves of a position, lower and upper; equal, or the upper one is a bit narrower.
  int high_bits_;
  std::array<std::uint64_t, kRounds> round_keys_;
};

}  // namespace headrace
