// Counter-based random numbers: the value depends on the key and the counter alone, so any thread can draw any
// sample's.
//
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept;

// The draws of one sample: keyed by (seed, epoch, index). Value type, 40 bytes; copy it to draw the same again.
class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index) noexcept;
  std::uint32_t next() noexcept;
  double uniform() noexcept;                          // [0, 1), 32 bits.
  std::uint32_t below(std::uint32_t bound) noexcept;  // 0 .. bound - 1, unbiased (Lemire 2019). bound > 0.

 private:
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> block_{};
  int used_ = 4;
};

// A permutation of 0 .. size-1 keyed by (seed, epoch), computed per element without an array: a Feistel network of
// eight Philox rounds on an even power of two, at least 256, with cycle walking (Black and Rogaway 2002). Thread-safe.
// An element costs 140 ns where the size is just below a power of four (60,000), up to four times that above one.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) noexcept;
  std::int64_t operator()(std::int64_t position) const noexcept;

 private:
  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint32_t, 2> key_;
  std::uint32_t epoch_;
};

}  // namespace headrace
