// What clipping does to float32 numbers that lie one behind the other, once per instruction set.
//
// Kernels allocate nothing and start no thread. Those of the plain set are the specification; the others add the same
// squares in another order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace::gradient_passes {

struct Extent {
  double squares = 0.0;  // Their sum; not finite exactly where a number is not: no float32 is too large for it.
  double largest = 0.0;  // Absolute value; means nothing where the squares are not finite.

  Extent& operator+=(const Extent& other) noexcept {
    squares += other.squares;
    largest = std::max(largest, other.largest);
    return *this;
  }
};

struct Kernels {
  Extent (*measure)(const float* values, std::int64_t count) noexcept;
  void (*multiply)(float* values, std::int64_t count, float factor) noexcept;
  // value * factor, and at least -limit and at most limit. Of what it wrote.
  Extent (*clamp)(float* values, std::int64_t count, float factor, float limit) noexcept;
};

// Of the best instruction set that this machine has.
const Kernels& kernels() noexcept;

}  // namespace headrace::gradient_passes
