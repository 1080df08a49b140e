#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>

#include "torch/train/detail/update.h"

// PyTorch leaves the gradient in a buffer's first step; ours begins at zero: momentum x 0 + gradient is the same value.
// With dampening the first gradient counts whole. A buffer that is still all 0 tells the first step, in a checkpoint,
// too; it differs from PyTorch's where all gradients before were 0.

namespace headrace {
namespace {

// The operators of _single_tensor_sgd in torch/optim/sgd.py 2.11, in its order.
void update_plain(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    at::Tensor gradient = options.maximize ? lists.gradients[i].neg() : lists.gradients[i];
    if (options.weight_decay != 0) gradient = gradient.add(parameter, options.weight_decay);
    if (options.momentum != 0) {
      const at::Tensor& buffer = lists.state[0][i];
      buffer.mul_(options.momentum).add_(gradient, 1 - options.dampening);
      gradient = options.nesterov ? gradient.add(buffer, options.momentum) : buffer;
    }
    parameter.add_(gradient, -lr);
  }
}

// The operators of _multi_tensor_sgd, whose Nesterov alone writes over the caller's gradients; ours does not.
void update_foreach(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  std::vector<at::Tensor> gradients = options.maximize ? at::_foreach_neg(lists.gradients) : lists.gradients;
  if (options.weight_decay != 0) gradients = at::_foreach_add(gradients, lists.parameters, options.weight_decay);
  if (options.momentum != 0) {
    const std::vector<at::Tensor>& buffers = lists.state[0];
    at::_foreach_mul_(buffers, options.momentum);
    at::_foreach_add_(buffers, gradients, 1 - options.dampening);
    gradients = options.nesterov ? at::_foreach_add(gradients, buffers, options.momentum) : buffers;
  }
  at::_foreach_add_(lists.parameters, gradients, -lr);
}

// The fused kernel walks parameter, gradient and state by address: puts a copy that lies as its parameter in the place
// of each gradient that does not.
void lay_gradients_like_parameters(UpdateLists& lists) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    if (same_layout(lists.parameters[i], lists.gradients[i])) continue;
    lists.gradients[i] = at::empty_like(lists.parameters[i]).copy_(lists.gradients[i]);
  }
}

void update_fused(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  lay_gradients_like_parameters(lists);
  const std::vector<at::Tensor> none;  // The kernel wants no buffers where there is no momentum.
  at::_fused_sgd_(lists.parameters, lists.gradients, options.momentum != 0 ? lists.state[0] : none,
                  options.weight_decay, options.momentum, lr, options.dampening, options.nesterov, options.maximize,
                  /*is_first_step=*/false);
}

void update(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  switch (options.implementation()) {
    case OptimizerImplementation::for_loop:
      return update_plain(lists, options, lr);
    case OptimizerImplementation::foreach_:
      return update_foreach(lists, options, lr);
    case OptimizerImplementation::fused:
      return update_fused(lists, options, lr);
  }
}

// Reads no further than the first number that is not 0.
bool is_new(const at::Tensor& buffer) {
  if (!buffer.is_non_overlapping_and_dense()) return !buffer.any().item<bool>();
  const float* values = buffer.const_data_ptr<float>();
  return std::all_of(values, values + buffer.numel(), [](float value) { return value == 0; });
}

// Those of a first step and the others.
std::array<UpdateLists, 2> by_step(const UpdateLists& lists) {
  std::array<UpdateLists, 2> split;
  for (UpdateLists& part : split) part.state.resize(1);
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    UpdateLists& part = split[is_new(lists.state[0][i]) ? 0 : 1];
    part.parameters.push_back(lists.parameters[i]);
    part.gradients.push_back(lists.gradients[i]);
    part.state[0].push_back(lists.state[0][i]);
  }
  return split;
}

}  // namespace

std::vector<StateKind> sgd_state(const OptimizerOptions& options) {
  if (options.momentum == 0) return {};
  return {{"momentum_buffer", false}};
}

void update_sgd(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  if (options.momentum == 0 || options.dampening == 0) return update(lists, options, lr);
  OptimizerOptions undamped = options;
  undamped.dampening = 0;
  std::array<UpdateLists, 2> split = by_step(lists);
  if (!split[0].parameters.empty()) update(split[0], undamped, lr);
  if (!split[1].parameters.empty()) update(split[1], options, lr);
}

}  // namespace headrace
