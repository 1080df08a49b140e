#include "torch/train/weight_average.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/train/detail/update.h"

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
  other_averages_ = moving_averages_;
  other_weights_ = moving_weights_;
}

double WeightAverage::decay(std::int64_t n) const {
  const auto updates = static_cast<double>(n);
  return warmup_ ? std::min(decay_, (1 + updates) / (10 + updates)) : decay_;
}

void WeightAverage::update(std::int64_t n, bool all) {
  c10::AutoGradMode no_graph(false);
  const std::vector<at::Tensor>& averages = all ? moving_averages_ : other_averages_;
  if (!averages.empty()) at::_foreach_lerp_(averages, all ? moving_weights_ : other_weights_, 1 - decay(n));
  for (const auto& [average, weight] : copied_) average.copy_(weight);
}

void WeightAverage::update_others(const at::Tensor& weight) {
  c10::AutoGradMode no_graph(false);
  if (!other_averages_.empty()) move_averages(other_averages_, other_weights_, weight);
  for (const auto& [average, of] : copied_) average.copy_(of);
}

std::vector<at::Tensor> WeightAverage::averages_of(const NamedTensors& parameters) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (std::size_t i = 0; i < parameters.size(); ++i) places.emplace(parameters[i].second.unsafeGetTensorImpl(), i);
  std::vector<at::Tensor> found(parameters.size());
  other_averages_.clear();
  other_weights_.clear();
  for (std::size_t i = 0; i < moving_weights_.size(); ++i) {
    const auto place = places.find(moving_weights_[i].unsafeGetTensorImpl());
    if (place != places.end() && !found[place->second].defined()) {  // A second name has an average of its own.
      found[place->second] = moving_averages_[i];
    } else {
      other_averages_.push_back(moving_averages_[i]);
      other_weights_.push_back(moving_weights_[i]);
    }
  }
  return found;
}

std::optional<WeightAverage> average_of(const ModelState& model, double decay, bool warmup) {
  if (decay == 0) return std::nullopt;
  const auto is_frozen = [](const auto& parameter) { return !parameter.second.requires_grad(); };
  if (std::all_of(model.parameters.begin(), model.parameters.end(), is_frozen)) {
    fail(ErrorCode::invalid_argument,
         "train: ema_decay: wanted a parameter that requires gradients, found none among {}", model.parameters.size());
  }
  return WeightAverage(model, decay, warmup);
}

void WeightAverage::lay_like_weights() {
  c10::AutoGradMode no_graph(false);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor &average = tensors_[i].second, &weight = weights_[i].second;
    if (average.strides() != weight.strides()) average.set_data(at::empty_like(weight).copy_(average));
  }
}

}  // namespace headrace
