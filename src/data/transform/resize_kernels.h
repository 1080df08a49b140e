// A strip of rows of resize.h, once per instruction set. All are integers, so that every set gives the same bits; the
// plain one is the specification.
//
// Sums of products of 16 bits are exact in 32 bits; between the two axes a value keeps up to 7 bits of fraction.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::transform::resize_passes {

constexpr int kRowsMax = 32;
// Values beside each plane's rows of the output that kernels may write, on either side.
constexpr std::ptrdiff_t kMargin = 64;

// The taps of one axis. All outputs have the same, even number of taps; those an output does not need have weight 0.
struct Taps {
  const int* begins = nullptr;  // The first pixel of each output; with all its taps it may reach behind the last one.
  const std::int16_t* weights = nullptr;  // outputs x count, not negative; each output's sum is 2^bits.
  int count = 0;
  int bits = 0;
};

struct Strip {
  const std::uint8_t* pixels = nullptr;  // HWC.
  std::ptrdiff_t stride = 0;             // Values from the beginning of a row to that of the next.
  int source_rows = 0;
  int columns = 0;
  int channels = 0;  // 1 to 4.

  Taps vertical;  // From the strip's first row on.
  int rows = 0;   // 1 to Kernels::rows.
  Taps horizontal;
  int outputs = 0;
  int fraction = 0;   // Bits between the axes: fraction + horizontal.bits is at most 23.
  bool flip = false;  // The last output first.

  std::int16_t* scratch = nullptr;  // scratch_size() values, whatever they are.
  std::uint8_t* out = nullptr;      // The first value of the first row; kMargin of them may be written before it.
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t plane_stride = 0;  // Between the channels of a row; 0: they lie side by side. Holds kMargin.
};

struct Kernels {
  int rows;  // Made at once, at most kRowsMax.
  void (*resize)(const Strip& strip) noexcept;
};

// Of the best instruction set that this machine has, or of the one that core/base/kernel_sets.h names.
const Kernels& kernels() noexcept;

// For the strips of an image: its columns between the axes, and those behind the last that taps of weight 0 read.
inline std::ptrdiff_t scratch_size(int columns, int taps, int channels) noexcept {
  return (std::ptrdiff_t{columns} + taps) * channels * kRowsMax;
}

}  // namespace headrace::transform::resize_passes
