#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "torch/train/detail/update.h"

namespace headrace {
namespace {

// LibTorch's kernels compare strides number by number, also those of dimensions of one element, which say nothing.
at::Tensor laid_as(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.strides() == parameter.strides() && !tensor.is_neg()) return tensor;
  if (same_layout(tensor, parameter) && !tensor.is_neg())
    return at::as_strided(tensor, parameter.sizes(), parameter.strides());
  return at::empty_like(parameter).copy_(tensor);
}

// Of state, which is written to: the tensor stays the same object where it gets other memory, after its parameter has.
void lay_state(std::vector<at::Tensor>& state, const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!same_layout(state[i], parameters[i])) {
      state[i].set_data(at::empty_like(parameters[i]).copy_(state[i]));
    }
    state[i] = laid_as(state[i], parameters[i]);
  }
}

void update_adam(UpdateLists& lists, const OptimizerOptions& options, const at::Tensor& lr,
                 const std::optional<at::Tensor>& found_inf) {
  enum Kind : std::size_t { kExpAvg, kExpAvgSq, kStep, kMaxExpAvgSq };
  const std::vector<at::Tensor> none;
  const std::vector<at::Tensor>& steps = lists.state[kStep];
  lay_state(lists.state[kExpAvg], lists.parameters);
  lay_state(lists.state[kExpAvgSq], lists.parameters);
  if (options.amsgrad) lay_state(lists.state[kMaxExpAvgSq], lists.parameters);
  at::_foreach_add_(steps, 1);
  const auto update = [&](const auto& kernel) {
    kernel(lists.parameters, lists.gradients, lists.state[kExpAvg], lists.state[kExpAvgSq],
           options.amsgrad ? lists.state[kMaxExpAvgSq] : none, steps, lr, options.betas[0], options.betas[1],
           options.weight_decay, options.eps, options.amsgrad, options.maximize, std::optional<at::Tensor>{},
           found_inf);
  };
  if (options.name == OptimizerName::adamw) {
    update([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    update([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
  if (found_inf) at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), *found_inf));
}

void update_sgd(UpdateLists& lists, const OptimizerOptions& options, const at::Tensor& lr,
                const std::optional<at::Tensor>& found_inf) {
  const bool has_momentum = options.momentum != 0;
  if (has_momentum) lay_state(lists.state[0], lists.parameters);
  at::_fused_sgd_(lists.parameters, lists.gradients, has_momentum ? lists.state[0] : std::vector<at::Tensor>{},
                  options.weight_decay, options.momentum, lr, options.dampening, options.nesterov, options.maximize,
                  /*is_first_step=*/false, std::optional<at::Tensor>{}, found_inf);
}

}  // namespace

void update_by_operators(UpdateLists& lists, const OptimizerOptions& options, const at::Tensor& lr,
                         const at::Tensor& found_inf) {
  if (lists.parameters.empty()) return;
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    lists.gradients[i] = laid_as(lists.gradients[i], lists.parameters[i]);
  }
  const std::optional<at::Tensor> found = found_inf.defined() ? std::optional(found_inf) : std::nullopt;
  if (options.name == OptimizerName::sgd) {
    update_sgd(lists, options, lr, found);
  } else {
    update_adam(lists, options, lr, found);
  }
  for (const at::Tensor& parameter : lists.parameters) count_write(parameter);  // The kernels do not.
}

void move_averages(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& parameters,
                   const at::Tensor& weight) {
  const std::vector<at::Tensor> steps = at::_foreach_sub(parameters, averages);
  at::_foreach_mul_(steps, weight);
  at::_foreach_add_(averages, steps);
}

}  // namespace headrace
