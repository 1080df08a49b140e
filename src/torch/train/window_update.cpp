#include "torch/train/window_update.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/maximum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>

#include "torch/numerics/clip.h"
#include "torch/train/detail/update_walk.h"

namespace headrace {

WindowUpdate::WindowUpdate(const ModelState& model, Optimizer& optimizer, const TrainOptions& options,
                           WeightAverage* average)
    : model_(model),
      optimizer_(optimizer),
      norm_per_(options.grad_norm_per),
      clip_(clip_options(options)),
      average_(average) {}

void WindowUpdate::follow_optimizer() {
  const NamedTensors& now = optimizer_.parameters();
  const auto is_known = [](const at::Tensor& known, const auto& named) { return known.is_same(named.second); };
  if (made_of_ == now.data() && groups_ == optimizer_.groups() &&
      std::equal(parameters_.begin(), parameters_.end(), now.begin(), now.end(), is_known)) {
    return;
  }
  parameters_.clear();
  std::vector<std::string> names;
  std::vector<std::size_t> groups;
  std::unordered_set<const c10::TensorImpl*> updated;
  for (std::size_t i = 0; i < now.size(); ++i) {
    parameters_.push_back(now[i].second);
    updated.insert(now[i].second.unsafeGetTensorImpl());
    if (norm_per_ == GradNormPer::layer) names.push_back(now[i].first);
    if (norm_per_ == GradNormPer::group) groups.push_back(optimizer_.group_of(i));
  }
  parts_ = clip_parts(norm_per_, names, groups);
  in_model_order_.clear();
  std::copy_if(model_.parameters.begin(), model_.parameters.end(), std::back_inserter(in_model_order_),
               [&](const auto& named) { return updated.contains(named.second.unsafeGetTensorImpl()); });
  if (average_ != nullptr) averages_ = average_->averages_of(now);
  made_of_ = now.data();
  groups_ = optimizer_.groups();
}

// Lists of tensors are multiplied without copies, then.
bool WindowUpdate::in_place(bool external) const {
  return external || !optimizer_.is_on_cpu() || !UpdateWalk::is_for(optimizer_.options());
}

const NamedTensors& WindowUpdate::parameters() {
  follow_optimizer();
  return in_model_order_;
}

std::vector<at::Tensor> WindowUpdate::gradients() {
  follow_optimizer();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

void WindowUpdate::multiply(double factor, bool external) {
  factors_.clear();
  if (factor == 1) return;
  if (!in_place(external)) {
    follow_optimizer();
    factors_.assign(parameters_.size(), factor);
    return;
  }
  multiply_now(factor);
}

void WindowUpdate::multiply_now(double factor) {
  c10::AutoGradMode no_graph(false);
  const std::vector<at::Tensor> all = gradients();
  if (!all.empty()) at::_foreach_mul_(all, factor);
}

ClipReport WindowUpdate::clip(double factor, bool external) {
  follow_optimizer();
  factors_.clear();
  if (clip_.value > 0 || clip_.ratio > 0 || in_place(external)) {
    return clip_gradients(parameters_, parts_, clip_, factor);
  }
  NormFactors found = norm_factors(parameters_, parts_, clip_, factor);
  const auto changes = [](double of_gradient) { return of_gradient != 1; };
  if (std::any_of(found.factors.begin(), found.factors.end(), changes)) factors_ = std::move(found.factors);
  return found.report;
}

at::Tensor WindowUpdate::step_by_operators(double factor, bool checks, const at::Tensor& rates,
                                           const at::Tensor& average_weight, const at::Tensor& is_left_out) {
  follow_optimizer();
  c10::AutoGradMode no_graph(false);
  DeviceClip clipped = clip_on_device(parameters_, parts_, clip_, factor);
  with_gradients_ = std::move(clipped.parameters);
  UpdateExtras extras;
  extras.rates = rates;
  if (checks) extras.found_inf = clipped.found_inf;
  if (is_left_out.defined()) extras.found_inf = checks ? at::maximum(clipped.found_inf, is_left_out) : is_left_out;
  if (average_weight.defined() && average_ != nullptr) {
    extras.averages = averages_;
    const bool may_stay = extras.found_inf.defined();
    extras.average_weight = may_stay ? average_weight.mul(extras.found_inf.neg().add(1)) : average_weight;
    average_->update_others(extras.average_weight);
  }
  optimizer_.step(1.0, extras);
  return clipped.figures;
}

std::string WindowUpdate::gradient_at(double place) const {
  if (place < 0 || place >= static_cast<double>(with_gradients_.size())) return {};
  const NamedTensors& now = optimizer_.parameters();
  const std::size_t parameter = with_gradients_[static_cast<std::size_t>(place)];
  return parameter < now.size() ? now[parameter].first : std::string{};
}

void WindowUpdate::step(const std::function<double(double)>& scheduled, std::optional<double> average_decay) {
  follow_optimizer();
  UpdateExtras extras;
  extras.gradient_factors = factors_;
  if (average_decay) {
    extras.averages = averages_;
    extras.average_decay = *average_decay;
  }
  optimizer_.step(scheduled, extras);
}

}  // namespace headrace
