#include "image/resize_kernels.h"

#include <algorithm>
#include <cmath>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "image/resize_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::image::resize_passes {
namespace HWY_NAMESPACE {

// ---- one value at a time: the specification, and what is left over beside whole vectors ----

HWY_INLINE float blended(const std::uint8_t* values, std::ptrdiff_t stride, const float* weights, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += weights[k] * static_cast<float>(values[k * stride]);
  return sum;
}

HWY_INLINE float blended(const float* values, std::ptrdiff_t stride, const float* weights, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += weights[k] * values[k * stride];
  return sum;
}

HWY_INLINE std::uint8_t rounded(float value) {
  return static_cast<std::uint8_t>(std::clamp(std::nearbyint(value), 0.0F, 255.0F));
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain ----

void blend_rows(const std::uint8_t* rows, std::ptrdiff_t stride, const float* weights, int count, std::ptrdiff_t values,
                float* out) noexcept {
  for (std::ptrdiff_t i = 0; i < values; ++i) out[i] = blended(rows + i, stride, weights, count);
}

void blend_columns(Rows<const float> rows, const Columns& columns, Rows<float> out) noexcept {
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < columns.outputs; ++j) {
      const float* from = rows.values + r * rows.stride + columns.begins[j] * columns.channels;
      for (int c = 0; c < columns.channels; ++c) {
        out.values[r * out.stride + j * columns.channels + c] =
            blended(from + c, columns.channels, columns.weights + j * columns.taps, columns.taps);
      }
    }
  }
}

void round(const float* values, std::ptrdiff_t count, std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = 0; i < count; ++i) out[i] = rounded(values[i]);
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
using Pixel = hn::FixedTag<float, 4>;  // The channels of one pixel, and the next one's first where there are fewer.
using Bytes = hn::Rebind<std::uint8_t, F>;
using Words = hn::RebindToSigned<F>;
constexpr F f;
constexpr Pixel pixel;
constexpr std::ptrdiff_t kLanes = HWY_LANES(float);
static_assert(kLanes <= kPadding);

HWY_INLINE V load(const std::uint8_t* from) {
  return hn::ConvertTo(f, hn::PromoteTo(Words{}, hn::LoadU(Bytes{}, from)));
}

void blend_rows(const std::uint8_t* rows, std::ptrdiff_t stride, const float* weights, int count, std::ptrdiff_t values,
                float* out) noexcept {
  constexpr std::ptrdiff_t kStep = 4 * kLanes;  // Four sums at once hide the latency of the additions.
  std::ptrdiff_t i = 0;
  for (; i + kStep <= values; i += kStep) {
    V a = hn::Zero(f), b = a, c = a, d = a;
    const std::uint8_t* from = rows + i;
    for (int k = 0; k < count; ++k, from += stride) {
      const V weight = hn::Set(f, weights[k]);
      a = hn::MulAdd(load(from), weight, a);
      b = hn::MulAdd(load(from + kLanes), weight, b);
      c = hn::MulAdd(load(from + 2 * kLanes), weight, c);
      d = hn::MulAdd(load(from + 3 * kLanes), weight, d);
    }
    hn::StoreU(a, f, out + i);
    hn::StoreU(b, f, out + i + kLanes);
    hn::StoreU(c, f, out + i + 2 * kLanes);
    hn::StoreU(d, f, out + i + 3 * kLanes);
  }
  for (; i + kLanes <= values; i += kLanes) {
    V sum = hn::Zero(f);
    for (int k = 0; k < count; ++k) sum = hn::MulAdd(load(rows + k * stride + i), hn::Set(f, weights[k]), sum);
    hn::StoreU(sum, f, out + i);
  }
  for (; i < values; ++i) out[i] = blended(rows + i, stride, weights, count);
}

// One output of kRows rows: all their channels, and behind them what belongs to the next pixel.
struct Sums {
  hn::Vec<Pixel> first = hn::Zero(pixel), second = first, third = first, fourth = first;

  HWY_INLINE Sums() {}  // Written out: an implicit one is not compiled for this instruction set.
  HWY_INLINE void add(Rows<const float> at, float weight) {
    const auto factor = hn::Set(pixel, weight);
    first = hn::MulAdd(hn::LoadU(pixel, at.values), factor, first);
    second = hn::MulAdd(hn::LoadU(pixel, at.values + at.stride), factor, second);
    third = hn::MulAdd(hn::LoadU(pixel, at.values + 2 * at.stride), factor, third);
    fourth = hn::MulAdd(hn::LoadU(pixel, at.values + 3 * at.stride), factor, fourth);
  }
  HWY_INLINE void store(Rows<float> to) const {
    hn::StoreU(first, pixel, to.values);
    hn::StoreU(second, pixel, to.values + to.stride);
    hn::StoreU(third, pixel, to.values + 2 * to.stride);
    hn::StoreU(fourth, pixel, to.values + 3 * to.stride);
  }
};
static_assert(kRows == 4);

// Every output writes four floats, of which the next output overwrites what is not its own. Bound by loads: written-out
// taps gained 5 %.
void blend_columns(Rows<const float> rows, const Columns& columns, Rows<float> out) noexcept {
  const std::ptrdiff_t channels = columns.channels;
  const float* weights = columns.weights;
  for (int j = 0; j < columns.outputs; ++j, weights += columns.taps, out.values += channels) {
    Rows<const float> at{rows.values + columns.begins[j] * channels, rows.stride};
    Sums sums;
    for (int k = 0; k < columns.taps; ++k, at.values += channels) sums.add(at, weights[k]);
    sums.store(out);
  }
}

// Added to a float of 0 .. 255, 2^23 leaves no bits for a fraction: the sum is rounded, and its lowest byte the result.
void round(const float* values, std::ptrdiff_t count, std::uint8_t* out) noexcept {
  const V magic = hn::Set(f, 8388608.0F);
  std::ptrdiff_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto bits = hn::BitCast(hn::RebindToUnsigned<F>{}, hn::Add(hn::LoadU(f, values + i), magic));
    hn::StoreU(hn::TruncateTo(Bytes{}, bits), Bytes{}, out + i);
  }
  for (; i < count; ++i) out[i] = rounded(values[i]);
}

#endif

constexpr Kernels kTable{blend_rows, blend_columns, round};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::image::resize_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::image::resize_passes {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::image::resize_passes
#endif  // HWY_ONCE
