// The passes of resize.h over one row, once per instruction set. Those of the plain set are the specification.
//
// Kernels allocate nothing and start no thread. Sums are float32; sets differ in the order and fusing of operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::image::resize_passes {

// Floats behind the last one of a row that vectors may read or write.
constexpr std::ptrdiff_t kPadding = 16;
// Rows whose columns are blended at once, to share the loads of weights and places.
constexpr int kRows = 4;

// kRows rows of floats, the first values of which are `stride` apart.
template <class Value>
struct Rows {
  Value* values;
  std::ptrdiff_t stride;
};

// The taps of one axis. All outputs have the same number; those an output does not need have weight 0.
struct Columns {
  const int* begins;     // The first pixel of each output.
  const float* weights;  // outputs x taps.
  int outputs;
  int taps;
  int channels;  // 1 to 4.
};

struct Kernels {
  // out[i] = sum of weights[k] * rows[k * stride + i] over k < count, for i < values.
  void (*blend_rows)(const std::uint8_t* rows, std::ptrdiff_t stride, const float* weights, int count,
                     std::ptrdiff_t values, float* out) noexcept;
  // Of each row: out[j * channels + c] = sum of the weights of output j times row[(begins[j] + k) * channels + c] over
  // k < taps.
  void (*blend_columns)(Rows<const float> rows, const Columns& columns, Rows<float> out) noexcept;
  // To the nearest. Values lie within 0 .. 255, or outside by what rounding did to them.
  void (*round)(const float* values, std::ptrdiff_t count, std::uint8_t* out) noexcept;
};

// Of the best instruction set that this machine has, or of the one that base/kernel_sets.h names.
const Kernels& kernels() noexcept;

}  // namespace headrace::image::resize_passes
