#include "torch/train/weight_average.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"

namespace headrace {
namespace {

void check_is_writable(const std::string& name, const at::Tensor& weight) {
  const bool is_shared = at::has_internal_overlap(weight) == at::MemOverlap::Yes;
  if (!is_shared && !weight.is_inference()) return;
  fail(ErrorCode::invalid_argument, "train: ema_decay: {}: wanted a tensor that can be written in place, found {}",
       name, is_shared ? "one whose elements share memory" : "an inference tensor");
}

}  // namespace

WeightAverage::WeightAverage(const ModelState& model, double decay, bool warmup)
    : decay_(decay), warmup_(warmup), weights_(weights_of(model)) {
  if (!(decay >= 0 && decay < 1)) {
    fail(ErrorCode::invalid_argument, "train: ema_decay: wanted at least 0 and less than 1, found {}", decay);
  }
  for (const auto& [name, weight] : weights_) check_is_writable(name, weight);
  c10::AutoGradMode no_graph(false);
  for (const auto& [name, weight] : weights_) {
    const at::Tensor average = weight.detach().clone();
    tensors_.emplace_back(name, average);
    if (average.is_floating_point()) {
      moving_averages_.push_back(average);
      moving_weights_.push_back(weight);
    } else {
      copied_.emplace_back(average, weight);
    }
  }
}

void WeightAverage::update(std::int64_t n) {
  c10::AutoGradMode no_graph(false);
  const auto updates = static_cast<double>(n);
  const double decay = warmup_ ? std::min(decay_, (1 + updates) / (10 + updates)) : decay_;
  if (!moving_averages_.empty()) at::_foreach_lerp_(moving_averages_, moving_weights_, 1 - decay);
  for (const auto& [average, weight] : copied_) average.copy_(weight);
}

void WeightAverage::lay_like_weights() {
  c10::AutoGradMode no_graph(false);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor &average = tensors_[i].second, &weight = weights_[i].second;
    if (average.strides() != weight.strides()) average.set_data(at::empty_like(weight).copy_(average));
  }
}

}  // namespace headrace
