// The arithmetic of normalize.h over a run of values, once per instruction set. That of the plain set looks values up
// in the table; the others compute them, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/transform/normalize.h"

namespace headrace::transform::normalize_passes {

// All of channel `channel`, or of all channels in turn, beginning with the first.
constexpr int kEveryChannel = -1;

struct Kernels {
  void (*to_float)(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
                   float* out) noexcept;
  // To bfloat16, rounded to the nearest, ties to even.
  void (*to_bfloat)(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
                    std::uint16_t* out) noexcept;
  // Of pixels of three channels, each channel for itself.
  void (*split3)(const std::uint8_t* pixels, std::ptrdiff_t count, std::uint8_t* first, std::uint8_t* second,
                 std::uint8_t* third) noexcept;
};

// Of the best instruction set that this machine has, or of the one that core/base/kernel_sets.h names.
const Kernels& kernels() noexcept;

}  // namespace headrace::transform::normalize_passes
