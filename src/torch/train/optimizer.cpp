#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <headrace/optimizer.h>

#include <algorithm>

#include "core/base/fail.h"
#include "torch/train/detail/update.h"

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
    : Optimizer(std::vector<ParameterGroup>{{std::move(parameters), options}}) {}

Optimizer::Optimizer(std::vector<ParameterGroup> groups) {
  if (groups.empty()) fail(ErrorCode::invalid_argument, "train: an optimizer needs a group of parameters");
  for (ParameterGroup& from : groups) {
    if (from.options.name != groups.front().options.name) {
      fail(ErrorCode::invalid_argument, "train: wanted all groups of an optimizer to be of one kind");
    }
    Group group;
    group.options = from.options;
    group.lr_mult = from.lr_mult;
    group.begin = parameters_.size();
    for (auto& [name, parameter] : from.parameters) {
      if (!parameter.defined() || parameter.scalar_type() != at::kFloat || !parameter.is_cpu()) {
        fail(ErrorCode::invalid_argument, "train: parameter {}: wanted float32 on the CPU, found {}", name,
             parameter.defined()
                 ? fmt::format("{} on {}", c10::toString(parameter.scalar_type()), parameter.device().str())
                 : "none");
      }
      parameters_.emplace_back(std::move(name), std::move(parameter));
    }
    group.end = parameters_.size();
    add_missing_state(group);
    groups_.push_back(std::move(group));
  }
}

void Optimizer::add_missing_state(Group& group) {
  c10::AutoGradMode no_graph(false);
  const std::vector<StateKind> kinds = state_kinds(group.options);
  for (std::size_t kind = group.state.size(); kind < kinds.size(); ++kind) {
    group.state_names.emplace_back(kinds[kind].name);
    std::vector<at::Tensor>& tensors = group.state.emplace_back();
    for (std::size_t i = group.begin; i < group.end; ++i) {
      tensors.push_back(kinds[kind].scalar ? at::zeros({}, at::kFloat) : at::zeros_like(parameters_[i].second));
    }
  }
}

void Optimizer::step(double lr) {
  step([lr](double) { return lr; });
}

void Optimizer::step(const std::function<double(double)>& scheduled) {
  c10::AutoGradMode no_graph(false);
  for (const Group& group : groups_) step_group(group, scheduled(group.options.lr) * group.lr_mult);
}

void Optimizer::step_group(const Group& group, double lr) {
  lists_.parameters.clear();
  lists_.gradients.clear();
  lists_.state.resize(group.state.size());
  for (std::vector<at::Tensor>& tensors : lists_.state) tensors.clear();
  for (std::size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    lists_.parameters.push_back(parameter);
    lists_.gradients.push_back(gradient);
    for (std::size_t kind = 0; kind < group.state.size(); ++kind) {
      lists_.state[kind].push_back(group.state[kind][i - group.begin]);
    }
  }
  if (lists_.parameters.empty()) return;
  switch (group.options.name) {
    case OptimizerName::adamw:
      update_adamw(lists_, group.options, lr);
      break;
    case OptimizerName::sgd:
      update_sgd(lists_, group.options, lr);
      break;
  }
  lists_.gradients.clear();  // Or they would outlive zero_gradients().
}

void Optimizer::zero_gradients() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimizer::set_implementation(OptimizerImplementation implementation) {
  for (Group& group : groups_) group.options.set_implementation(implementation);
}

void Optimizer::set_options(const OptimizerOptions& options, std::size_t group) {
  HEADRACE_CHECK(group < groups_.size(), "group {} of {}", group, groups_.size());
  if (options.name != groups_[group].options.name) {
    fail(ErrorCode::invalid_argument, "train: an optimizer cannot change its kind");
  }
  groups_[group].options = options;
  add_missing_state(groups_[group]);
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const Group& group : groups_) {
    for (const std::vector<at::Tensor>& tensors : group.state) {
      for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& [kind, tensor] : state_of(i)) {
      state.emplace_back(fmt::format("{}/{}", parameters_[i].first, kind), tensor);
    }
  }
  return state;
}

std::size_t Optimizer::group_of(std::size_t parameter) const {
  HEADRACE_CHECK(parameter < parameters_.size(), "parameter {} of {}", parameter, parameters_.size());
  std::size_t group = 0;
  while (groups_[group].end <= parameter) ++group;
  return group;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state_of(std::size_t parameter) const {
  const Group& group = groups_[group_of(parameter)];
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t kind = 0; kind < group.state.size(); ++kind) {
    state.emplace_back(group.state_names[kind], group.state[kind][parameter - group.begin]);
  }
  return state;
}

void Optimizer::share_state(std::size_t parameter, const std::string& kind, const at::Tensor& tensor) {
  c10::AutoGradMode no_graph(false);
  Group& group = groups_[group_of(parameter)];
  const auto& [name, of] = parameters_[parameter];
  const auto found = std::find(group.state_names.begin(), group.state_names.end(), kind);
  if (found == group.state_names.end()) {
    fail(ErrorCode::invalid_argument, "train: parameter {}: this optimizer keeps no {}", name, kind);
  }
  at::Tensor& state = group.state[static_cast<std::size_t>(found - group.state_names.begin())][parameter - group.begin];
  if (!tensor.defined() || tensor.sizes() != state.sizes() || tensor.scalar_type() != at::kFloat || !tensor.is_cpu()) {
    fail(ErrorCode::invalid_argument, "train: parameter {}: wanted a {} of shape [{}], float32 on the CPU", name, kind,
         fmt::join(state.sizes(), ", "));
  }
  if (tensor.dim() > 0 && !same_layout(tensor, of)) tensor.set_data(at::empty_like(of).copy_(tensor));
  state = tensor;
}

}  // namespace headrace
