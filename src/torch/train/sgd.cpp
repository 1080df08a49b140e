#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>

#include "torch/train/detail/update.h"

// PyTorch leaves the gradient in a buffer's first step; ours begins at zero: momentum x 0 + gradient is the same value.

namespace headrace {
namespace {

// The operators of _single_tensor_sgd in torch/optim/sgd.py 2.11, in its order.
void update_plain(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    at::Tensor gradient = lists.gradients[i];
    if (options.weight_decay != 0) gradient = gradient.add(parameter, options.weight_decay);
    if (options.momentum != 0) {
      const at::Tensor& buffer = lists.state[0][i];
      buffer.mul_(options.momentum).add_(gradient);
      gradient = options.nesterov ? gradient.add(buffer, options.momentum) : buffer;
    }
    parameter.add_(gradient, -lr);
  }
}

// The operators of _multi_tensor_sgd, whose Nesterov alone writes over the caller's gradients; ours does not.
void update_foreach(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  std::vector<at::Tensor> gradients = lists.gradients;
  if (options.weight_decay != 0) gradients = at::_foreach_add(gradients, lists.parameters, options.weight_decay);
  if (options.momentum != 0) {
    const std::vector<at::Tensor>& buffers = lists.state[0];
    at::_foreach_mul_(buffers, options.momentum);
    at::_foreach_add_(buffers, gradients);
    gradients = options.nesterov ? at::_foreach_add(gradients, buffers, options.momentum) : buffers;
  }
  at::_foreach_add_(lists.parameters, gradients, -lr);
}

void update_fused(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  lay_gradients_like_parameters(lists);
  const std::vector<at::Tensor> none;  // The kernel wants no buffers where there is no momentum.
  at::_fused_sgd_(lists.parameters, lists.gradients, options.momentum != 0 ? lists.state[0] : none,
                  options.weight_decay, options.momentum, lr, /*dampening=*/0, options.nesterov, /*maximize=*/false,
                  /*is_first_step=*/false);
}

}  // namespace

std::vector<StateKind> sgd_state(const OptimizerOptions& options) {
  if (options.momentum == 0) return {};
  return {{"momentum_buffer", false}};
}

void update_sgd(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  switch (options.implementation()) {
    case OptimizerImplementation::for_loop:
      return update_plain(lists, options, lr);
    case OptimizerImplementation::foreach_:
      return update_foreach(lists, options, lr);
    case OptimizerImplementation::fused:
      return update_fused(lists, options, lr);
  }
}

}  // namespace headrace
