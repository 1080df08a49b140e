#include "torch/train/detail/update_walk.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "torch/tensor/parallel.h"
#include "torch/train/detail/update.h"

namespace headrace {
namespace {

namespace kernels = update_kernels;

// Less is not worth another thread.
constexpr std::int64_t kPartElements = 16'384;
constexpr std::int64_t kPartsMax = 128;
constexpr std::int64_t kCacheLine = 64 / sizeof(float);
// Floats in the smallest vector of ATen's kernels on x86, with AVX2 as with AVX-512: measured.
constexpr std::int64_t kAtensLanes = 8;

float* elements(const at::Tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->mutable_data_ptr<float>();
}

float number(double value) {
  return static_cast<float>(value);
}

bool is_rmsprop(const OptimizerOptions& options) {
  return options.name == OptimizerName::rmsprop;
}

}  // namespace

UpdateWalk::UpdateWalk(const UpdateExtras& extras, std::size_t parameters) : extras_(extras) {
  segments_.reserve(parameters);
  ends_.reserve(parameters);
}

bool UpdateWalk::is_for(const OptimizerOptions& options) noexcept {
  return options.name != OptimizerName::sgd && options.implementation() == OptimizerImplementation::fused;
}

bool UpdateWalk::add(const Updated& updated, const OptimizerOptions& options) {
  const at::Tensor& parameter = updated.parameter;
  if (!parameter.is_non_overlapping_and_dense() || parameter.is_neg()) return false;
  const std::size_t count_at = is_rmsprop(options) ? 1 : 2;
  for (std::size_t i = 0; i < updated.state.size(); ++i) {
    if (i != count_at && updated.state[i] != nullptr && !same_layout(*updated.state[i], parameter)) return false;
  }
  at::Tensor gradient = updated.gradient;
  if (!same_layout(gradient, parameter) || gradient.is_neg()) {
    gradient = laid_.emplace_back(at::empty_like(parameter).copy_(gradient));
    if (extras_.zero_gradients) updated.gradient.zero_();
  } else if (extras_.zero_gradients) {
    count_write(gradient);
  }
  count_write(parameter);
  Segment& segment = segments_.emplace_back();
  segment.rmsprop = is_rmsprop(options);
  const std::int64_t count = parameter.numel();
  segment.arrays = {elements(&parameter), elements(&gradient), {}, updated.average, count - count % kAtensLanes};
  if (!segment.rmsprop) {
    segment.arrays.state[0] = elements(updated.state[0]);
    segment.arrays.state[1] = elements(updated.state[1]);
    segment.arrays.state[2] = elements(updated.state[3]);
  } else {
    const std::size_t next = options.momentum > 0 ? 3 : 2;
    segment.arrays.state[0] = elements(updated.state[0]);
    if (options.momentum > 0) segment.arrays.state[1] = elements(updated.state[2]);
    if (options.centered) segment.arrays.state[2] = elements(updated.state[next]);
  }
  set_step(segment, updated, options, count_step(*updated.state[count_at]));
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + count);
  return true;
}

// Powers take longer than the update of a small tensor: groups of other options with the same betas share them, too.
void UpdateWalk::share(const OptimizerOptions& options, std::size_t like, float count) {
  Shared now{.like = like, .count = count};
  kernels::Step& step = now.step;
  step.gradient_factor = options.maximize ? -1.0F : 1.0F;
  if (options.name != OptimizerName::adamw) step.weight_decay = number(options.weight_decay);
  if (is_rmsprop(options)) {
    step.mean_weight = step.square_weight = number(1 - options.alpha);
    step.square_decay = number(options.alpha);
    step.momentum = number(options.momentum);
  } else {
    now.betas = {options.betas[0], options.betas[1]};
    step.mean_weight = number(1 - now.betas[0]);
    step.square_weight = number(1 - now.betas[1]);
    step.square_decay = number(now.betas[1]);
    if (shared_.count == count && shared_.betas == now.betas) {
      step.correction = shared_.step.correction;
      now.mean_correction = shared_.mean_correction;
    } else {
      step.correction = number(std::sqrt(1 - std::pow(now.betas[1], double{count})));
      now.mean_correction = 1 - std::pow(now.betas[0], double{count});
    }
  }
  step.eps = number(options.eps);
  step.average_weight = number(1 - extras_.average_decay);
  step.zero_gradient = extras_.zero_gradients;
  shared_ = now;
}

void UpdateWalk::set_step(Segment& segment, const Updated& updated, const OptimizerOptions& options, float count) {
  if (shared_.like != updated.like || shared_.count != count) share(options, updated.like, count);
  kernels::Step& step = segment.step;
  step = shared_.step;
  step.gradient_factor *= number(updated.gradient_factor);
  if (options.name == OptimizerName::adamw) step.shrink = number(1 - updated.lr * options.weight_decay);
  step.step_size = number(-(updated.lr / shared_.mean_correction));
}

void UpdateWalk::run() const {
  if (segments_.empty()) return;
  const std::int64_t total = ends_.back();
  const std::int64_t parts = std::clamp<std::int64_t>(total / kPartElements, 1, kPartsMax);
  if (parts == 1) return run(0, total);
  const auto border = [&](std::int64_t part) {
    return part == parts ? total : total * part / parts / kCacheLine * kCacheLine;
  };
  for_each_range(parts, [&](std::int64_t begin, std::int64_t end) { run(border(begin), border(end)); });
}

void UpdateWalk::run(std::int64_t begin, std::int64_t end) const {
  const kernels::Kernels& of_machine = kernels::kernels();
  auto index = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (std::int64_t at = begin; at < end; ++index) {
    const Segment& segment = segments_[index];
    const std::int64_t first = index == 0 ? 0 : ends_[index - 1], stop = std::min(end, ends_[index]);
    const auto update = segment.rmsprop ? of_machine.rmsprop : of_machine.adam;
    update(segment.arrays, segment.step, at - first, stop - first);
    at = stop;
  }
}

}  // namespace headrace
