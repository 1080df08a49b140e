#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <headrace/error.h>
#include <headrace/optimizer.h>

#include "train/detail/update.h"

namespace headrace {
namespace {

// Dimensions of one element may have any stride.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

std::vector<StateKind> state_kinds(const OptimizerOptions& options) {
  return options.name == OptimizerName::sgd ? sgd_state(options) : adamw_state(options);
}

}  // namespace

void lay_gradients_like_parameters(UpdateLists& lists) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    if (same_layout(lists.parameters[i], lists.gradients[i])) continue;
    lists.gradients[i] = at::empty_like(lists.parameters[i]).copy_(lists.gradients[i]);
  }
}

Optimizer::Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.defined() || parameter.scalar_type() != at::kFloat || !parameter.is_cpu()) {
      fail(ErrorCode::invalid_argument, "train: parameter {}: wanted float32 on the CPU", name);
    }
  }
  add_missing_state();
}

void Optimizer::add_missing_state() {
  c10::AutoGradMode no_graph(false);
  const std::vector<StateKind> kinds = state_kinds(options_);
  for (std::size_t kind = state_.size(); kind < kinds.size(); ++kind) {
    state_names_.emplace_back(kinds[kind].name);
    std::vector<at::Tensor>& tensors = state_.emplace_back();
    for (const auto& [name, parameter] : parameters_) {
      tensors.push_back(kinds[kind].scalar ? at::zeros({}, at::kFloat) : at::zeros_like(parameter));
    }
  }
}

void Optimizer::step(double rate) {
  c10::AutoGradMode no_graph(false);
  lists_.parameters.clear();
  lists_.gradients.clear();
  lists_.state.resize(state_.size());
  for (std::vector<at::Tensor>& tensors : lists_.state) tensors.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    lists_.parameters.push_back(parameter);
    lists_.gradients.push_back(gradient);
    for (std::size_t kind = 0; kind < state_.size(); ++kind) lists_.state[kind].push_back(state_[kind][i]);
  }
  if (lists_.parameters.empty()) return;
  switch (options_.name) {
    case OptimizerName::adamw:
      update_adamw(lists_, options_, rate);
      break;
    case OptimizerName::sgd:
      update_sgd(lists_, options_, rate);
      break;
  }
  lists_.gradients.clear();  // Or they would outlive zero_gradients().
}

void Optimizer::zero_gradients() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimizer::set_implementation(OptimizerImplementation implementation) {
  options_.implementation = implementation;
}

void Optimizer::set_options(const OptimizerOptions& options) {
  if (options.name != options_.name) fail(ErrorCode::invalid_argument, "train: an optimizer cannot change its kind");
  options_ = options;
  add_missing_state();
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const std::vector<at::Tensor>& tensors : state_) {
    for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t kind = 0; kind < state_.size(); ++kind) {
      state.emplace_back(fmt::format("{}/{}", parameters_[i].first, state_names_[kind]), state_[kind][i]);
    }
  }
  return state;
}

}  // namespace headrace
