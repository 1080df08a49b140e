#include "torch/numerics/gradient_kernels.h"

#include <algorithm>
#include <cmath>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "torch/numerics/gradient_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::gradient_passes {
namespace HWY_NAMESPACE {

// ---- one value at a time: the specification, and what is left over beside whole vectors ----

HWY_INLINE void add_values(const float* values, std::int64_t count, Extent& extent) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = values[i];
    extent.squares += value * value;
    extent.largest = std::max(extent.largest, std::abs(value));
  }
}

HWY_INLINE void multiply_values(float* values, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

HWY_INLINE void clamp_values(float* values, std::int64_t count, float factor, float limit) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::min(std::max(values[i] * factor, -limit), limit);
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain ----

Extent measure(const float* values, std::int64_t count) noexcept {
  Extent extent;
  add_values(values, count, extent);
  return extent;
}

void multiply(float* values, std::int64_t count, float factor) noexcept {
  multiply_values(values, count, factor);
}

Extent clamp(float* values, std::int64_t count, float factor, float limit) noexcept {
  clamp_values(values, count, factor, limit);
  return measure(values, count);
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<double>;
using F = hn::Rebind<float, D>;  // As many floats as a vector has doubles.
using Whole = hn::ScalableTag<float>;
constexpr D d;
constexpr F f;
constexpr Whole whole;
constexpr std::int64_t kLanes = HWY_LANES(double);
constexpr std::int64_t kWholeLanes = HWY_LANES(float);

// Some of the squares, and the largest of the same values.
struct Sums {
  hn::Vec<D> squares, largest;

  HWY_INLINE void add(hn::Vec<F> values) {
    const auto wide = hn::PromoteTo(d, values);
    squares = hn::MulAdd(wide, wide, squares);
    largest = hn::Max(largest, hn::Abs(wide));
  }
  HWY_INLINE Extent together(const Sums& other) const {
    const auto all_squares = hn::Add(squares, other.squares), all_largest = hn::Max(largest, other.largest);
    return {hn::GetLane(hn::SumOfLanes(d, all_squares)), hn::GetLane(hn::MaxOfLanes(d, all_largest))};
  }
};

Extent measure(const float* values, std::int64_t count) noexcept {
  Sums even{hn::Zero(d), hn::Zero(d)}, odd = even;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    even.add(hn::LoadU(f, values + i));
    odd.add(hn::LoadU(f, values + i + kLanes));
  }
  Extent extent = even.together(odd);
  add_values(values + i, count - i, extent);
  return extent;
}

void multiply(float* values, std::int64_t count, float factor) noexcept {
  const auto factors = hn::Set(whole, factor);
  std::int64_t i = 0;
  for (; i + kWholeLanes <= count; i += kWholeLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(whole, values + i), factors), whole, values + i);
  }
  multiply_values(values + i, count - i, factor);
}

HWY_INLINE hn::Vec<F> clamped(const float* values, hn::Vec<F> factor, hn::Vec<F> limit) {
  return hn::Min(hn::Max(hn::Mul(hn::LoadU(f, values), factor), hn::Neg(limit)), limit);
}

Extent clamp(float* values, std::int64_t count, float factor, float limit) noexcept {
  const auto factors = hn::Set(f, factor), limits = hn::Set(f, limit);
  Sums even{hn::Zero(d), hn::Zero(d)}, odd = even;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const auto first = clamped(values + i, factors, limits), second = clamped(values + i + kLanes, factors, limits);
    hn::StoreU(first, f, values + i);
    hn::StoreU(second, f, values + i + kLanes);
    even.add(first);
    odd.add(second);
  }
  Extent extent = even.together(odd);
  clamp_values(values + i, count - i, factor, limit);
  add_values(values + i, count - i, extent);
  return extent;
}

#endif

constexpr Kernels kTable{measure, multiply, clamp};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::gradient_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::gradient_passes {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::gradient_passes
#endif  // HWY_ONCE
