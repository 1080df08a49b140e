// Random numbers of one sample: they depend on a key alone, so that any thread draws the same.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// The draws of one sample: keyed by (seed, epoch, index), counter-based (Philox4x32-10). Value type, 40 bytes; copy it
// to draw the same again.
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

}  // namespace headrace
