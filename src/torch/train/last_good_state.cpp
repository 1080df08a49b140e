#include "torch/train/last_good_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

bool fits(const NamedTensors& copies, const NamedTensors& tensors) {
  const auto same_device = [](const auto& copy, const auto& of) { return copy.second.device() == of.second.device(); };
  return are_alike(copies, tensors) && std::equal(copies.begin(), copies.end(), tensors.begin(), same_device);
}

}  // namespace

bool LastGoodState::is_of(const ExternalOptimizer& external) const {
  return !copies_.empty() && static_cast<bool>(put_back_external_) == static_cast<bool>(external.step);
}

void LastGoodState::keep(const RolledBack& of) {
  if (of.external.step && !of.external.keep_state) {
    fail(ErrorCode::invalid_argument,
         "train: external_optimizer {}: the policy rollback wanted a keep_state, found none", of.external.name);
  }
  std::function<void()> put_back;  // First, as it may throw.
  if (of.external.step) put_back = of.external.keep_state();
  NamedTensors tensors = training_tensors(of.model, of.averages, of.optimizer);
  const NamedTensors generators = generator_states(of.device(), of.generators);
  tensors.insert(tensors.end(), generators.begin(), generators.end());
  tensors.emplace_back(
      kLossScale,
      at::tensor({of.progress.loss_scale, static_cast<double>(of.progress.scale_good_updates)}, at::kDouble));
  c10::AutoGradMode no_graph(false);
  if (fits(copies_, tensors)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) copies_[i].second.copy_(tensors[i].second);
  } else {
    copies_.clear();  // Before there is more.
    NamedTensors made;
    for (const auto& [name, tensor] : tensors) made.emplace_back(name, tensor.detach().clone());
    copies_ = std::move(made);
  }
  put_back_external_ = std::move(put_back);
}

void LastGoodState::restore(const RolledBack& of) const {
  HEADRACE_CHECK(!copies_.empty(), "nothing was kept");
  NamedTensors tensors = training_tensors(of.model, of.averages, of.optimizer);
  const at::Tensor scale = at::zeros({2}, at::kDouble);
  tensors.emplace_back(kLossScale, scale);
  const std::map<std::string, at::Tensor> by_name(copies_.begin(), copies_.end());
  {
    c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : tensors) {
      const auto copy = by_name.find(name);
      if (copy != by_name.end()) {
        tensor.copy_(copy->second);
      } else if (name.starts_with(kOptimizerState)) {
        tensor.zero_();
      }
    }
  }
  of.progress.loss_scale = scale.const_data_ptr<double>()[0];
  of.progress.scale_good_updates = static_cast<std::int64_t>(scale.const_data_ptr<double>()[1]);
  set_generator_states(by_name, of.device(), of.generators);
  if (put_back_external_) put_back_external_();  // Last, as it may throw.
}

void LastGoodState::set(NamedTensors copies) {
  copies_ = std::move(copies);
  put_back_external_ = {};
}

}  // namespace headrace
