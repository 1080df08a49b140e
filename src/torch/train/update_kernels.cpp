#include "torch/train/update_kernels.h"

#include <algorithm>
#include <cmath>

// Compiled with -ffp-contract=off: a multiplication and an addition are one operation where it says so.

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "torch/train/update_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::update_kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain: the specification ----

// From the nearer end, as at::lerp.
float lerp(float from, float to, float weight) {
  const float difference = to - from;
  return weight < 0.5F ? std::fma(weight, difference, from) : std::fma(weight - 1, difference, to);
}

float gradient_at(const Arrays& arrays, const Step& step, std::int64_t i) {
  const float gradient = arrays.gradient[i] * step.gradient_factor;
  return step.weight_decay == 0 ? gradient : std::fma(arrays.parameter[i], step.weight_decay, gradient);
}

void finish(const Arrays& arrays, const Step& step, std::int64_t i, float parameter) {
  arrays.parameter[i] = parameter;
  if (arrays.average != nullptr) arrays.average[i] = lerp(arrays.average[i], parameter, step.average_weight);
  if (step.zero_gradient) arrays.gradient[i] = 0;
}

void adam(const Arrays& arrays, const Step& step, std::int64_t begin, std::int64_t end) noexcept {
  const auto [exp_avg, exp_avg_sq, max_exp_avg_sq] = arrays.state;
  for (std::int64_t i = begin; i < end; ++i) {
    const float gradient = gradient_at(arrays, step, i);
    const float parameter = arrays.parameter[i] * step.shrink;
    exp_avg[i] = lerp(exp_avg[i], gradient, step.mean_weight);
    const bool in_vector = i < arrays.vectors_end;
    const float added = step.square_weight * gradient;
    exp_avg_sq[i] = in_vector ? std::fma(added, gradient, exp_avg_sq[i] * step.square_decay)
                              : std::fma(exp_avg_sq[i], step.square_decay, added * gradient);
    float square = exp_avg_sq[i];
    if (max_exp_avg_sq != nullptr) {
      const bool is_larger = max_exp_avg_sq[i] < square;
      const bool is_new_nan = std::isnan(square) && !std::isnan(max_exp_avg_sq[i]);
      if (is_larger || (in_vector && is_new_nan)) max_exp_avg_sq[i] = square;
      square = max_exp_avg_sq[i];
    }
    const float denominator = std::sqrt(square) / step.correction + step.eps;
    finish(arrays, step, i, parameter + step.step_size * exp_avg[i] / denominator);
  }
}

void rmsprop(const Arrays& arrays, const Step& step, std::int64_t begin, std::int64_t end) noexcept {
  const auto [square_avg, momentum_buffer, grad_avg] = arrays.state;
  for (std::int64_t i = begin; i < end; ++i) {
    const float gradient = gradient_at(arrays, step, i);
    square_avg[i] = std::fma(step.square_weight * gradient, gradient, square_avg[i] * step.square_decay);
    float square = square_avg[i];
    if (grad_avg != nullptr) {
      grad_avg[i] = lerp(grad_avg[i], gradient, step.mean_weight);
      square = std::fma(-grad_avg[i], grad_avg[i], square);
    }
    const float denominator = std::sqrt(square) + step.eps;
    float parameter = arrays.parameter[i];
    if (momentum_buffer != nullptr) {
      momentum_buffer[i] = momentum_buffer[i] * step.momentum + gradient / denominator;
      parameter = std::fma(momentum_buffer[i], step.step_size, parameter);
    } else {
      parameter = parameter + step.step_size * gradient / denominator;
    }
    finish(arrays, step, i, parameter);
  }
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
constexpr F f;
constexpr std::int64_t kLanes = HWY_LANES(float);

HWY_INLINE V lerp(V from, V to, float weight) {
  const V difference = hn::Sub(to, from);
  if (weight < 0.5F) return hn::MulAdd(hn::Set(f, weight), difference, from);
  return hn::MulAdd(hn::Set(f, weight - 1), difference, to);
}

HWY_INLINE V gradient_at(const Arrays& arrays, const Step& step, std::int64_t i, V parameter) {
  const V gradient = hn::Mul(hn::LoadU(f, arrays.gradient + i), hn::Set(f, step.gradient_factor));
  if (step.weight_decay == 0) return gradient;
  return hn::MulAdd(parameter, hn::Set(f, step.weight_decay), gradient);
}

// The running square, written.
template <bool kInVector>
HWY_INLINE V square_at(float* squares, const Step& step, V gradient) {
  const V old = hn::LoadU(f, squares), decay = hn::Set(f, step.square_decay);
  const V added = hn::Mul(hn::Set(f, step.square_weight), gradient);
  const V square =
      kInVector ? hn::MulAdd(added, gradient, hn::Mul(old, decay)) : hn::MulAdd(old, decay, hn::Mul(added, gradient));
  hn::StoreU(square, f, squares);
  return square;
}

HWY_INLINE void finish(const Arrays& arrays, const Step& step, std::int64_t i, V parameter) {
  hn::StoreU(parameter, f, arrays.parameter + i);
  if (arrays.average != nullptr) {
    float* average = arrays.average + i;
    hn::StoreU(lerp(hn::LoadU(f, average), parameter, step.average_weight), f, average);
  }
  if (step.zero_gradient) hn::StoreU(hn::Zero(f), f, arrays.gradient + i);
}

// In a vector of ATen's, or in what fills none.
template <bool kInVector>
struct Adam {
  static HWY_INLINE void update(const Arrays& arrays, const Step& step, std::int64_t i) {
    const V before = hn::LoadU(f, arrays.parameter + i);
    const V gradient = gradient_at(arrays, step, i, before);
    const V parameter = hn::Mul(before, hn::Set(f, step.shrink));
    float* exp_avg = arrays.state[0] + i;
    const V mean = lerp(hn::LoadU(f, exp_avg), gradient, step.mean_weight);
    hn::StoreU(mean, f, exp_avg);
    V square = square_at<kInVector>(arrays.state[1] + i, step, gradient);
    if (arrays.state[2] != nullptr) {
      float* largest = arrays.state[2] + i;
      const V old = hn::LoadU(f, largest);
      // Not Max: what it makes of a NaN differs from one instruction set to the other.
      if constexpr (kInVector) {
        square = hn::IfThenElse(hn::Or(hn::IsNaN(old), hn::Ge(old, square)), old, square);
      } else {
        square = hn::IfThenElse(hn::Lt(old, square), square, old);
      }
      hn::StoreU(square, f, largest);
    }
    const V root = hn::Div(hn::Sqrt(square), hn::Set(f, step.correction));
    const V denominator = hn::Add(root, hn::Set(f, step.eps));
    finish(arrays, step, i, hn::Add(parameter, hn::Div(hn::Mul(hn::Set(f, step.step_size), mean), denominator)));
  }
};

struct Rmsprop {
  static HWY_INLINE void update(const Arrays& arrays, const Step& step, std::int64_t i) {
    const V parameter = hn::LoadU(f, arrays.parameter + i);
    const V gradient = gradient_at(arrays, step, i, parameter);
    V square = square_at<true>(arrays.state[0] + i, step, gradient);
    if (arrays.state[2] != nullptr) {
      float* grad_avg = arrays.state[2] + i;
      const V mean = lerp(hn::LoadU(f, grad_avg), gradient, step.mean_weight);
      hn::StoreU(mean, f, grad_avg);
      square = hn::NegMulAdd(mean, mean, square);
    }
    const V denominator = hn::Add(hn::Sqrt(square), hn::Set(f, step.eps));
    const V step_size = hn::Set(f, step.step_size);
    if (arrays.state[1] != nullptr) {
      float* buffer = arrays.state[1] + i;
      const V kept = hn::Mul(hn::LoadU(f, buffer), hn::Set(f, step.momentum));
      const V direction = hn::Add(kept, hn::Div(gradient, denominator));
      hn::StoreU(direction, f, buffer);
      finish(arrays, step, i, hn::MulAdd(direction, step_size, parameter));
    } else {
      finish(arrays, step, i, hn::Add(parameter, hn::Div(hn::Mul(step_size, gradient), denominator)));
    }
  }
};

// The elements that fill no vector, in arrays that do.
class Rest {
 public:
  HWY_INLINE Rest(const Arrays& arrays, std::int64_t begin, std::int64_t count)
      : from_{arrays.parameter, arrays.gradient, arrays.state[0], arrays.state[1], arrays.state[2], arrays.average},
        begin_(begin),
        count_(count) {
    for (int array = 0; array < kArrays; ++array) {
      for (std::int64_t i = 0; i < count_ && from_[array] != nullptr; ++i) lanes_[array][i] = from_[array][begin_ + i];
    }
  }

  HWY_INLINE Arrays arrays() { return {lane(0), lane(1), {lane(2), lane(3), lane(4)}, lane(5), 0}; }

  // A gradient that stays as it is may not be written to: others may read it.
  HWY_INLINE void write(bool zero_gradient) const {
    for (int array = 0; array < kArrays; ++array) {
      if (array == 1 && !zero_gradient) continue;
      for (std::int64_t i = 0; i < count_ && from_[array] != nullptr; ++i) from_[array][begin_ + i] = lanes_[array][i];
    }
  }

 private:
  static constexpr int kArrays = 6;
  HWY_INLINE float* lane(int array) { return from_[array] == nullptr ? nullptr : lanes_[array]; }

  HWY_ALIGN float lanes_[kArrays][kLanes] = {};
  float* from_[kArrays];
  std::int64_t begin_, count_;
};

template <class Update>
HWY_INLINE void walk(const Arrays& arrays, const Step& step, std::int64_t begin, std::int64_t end) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) Update::update(arrays, step, i);
  if (i == end) return;
  Rest rest(arrays, i, end - i);
  Update::update(rest.arrays(), step, 0);
  rest.write(step.zero_gradient);
}

void adam(const Arrays& arrays, const Step& step, std::int64_t begin, std::int64_t end) noexcept {
  const std::int64_t middle = std::clamp(arrays.vectors_end, begin, end);
  walk<Adam<true> >(arrays, step, begin, middle);
  walk<Adam<false> >(arrays, step, middle, end);
}

void rmsprop(const Arrays& arrays, const Step& step, std::int64_t begin, std::int64_t end) noexcept {
  walk<Rmsprop>(arrays, step, begin, end);
}

#endif

constexpr Kernels kTable{adam, rmsprop};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::update_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::update_kernels {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::update_kernels
#endif  // HWY_ONCE
