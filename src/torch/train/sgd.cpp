#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "torch/train/detail/update.h"

// PyTorch leaves the gradient in a buffer's first step; ours begins at zero: momentum x 0 + gradient is the same value.
// With dampening the first gradient counts whole. A buffer of +0 alone tells the first step, in a checkpoint, too.
// Where a damped step leaves all 0 behind, the first number becomes -0, which counts as 0 and is not taken for a new
// buffer.

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

// The fused kernel walks parameter, gradient and buffer by address. Gradients can be copied to lie as it wants them;
// the others must do so.
bool kernel_takes(const UpdateLists& lists, const OptimizerOptions& options, std::size_t i) {
  const at::Tensor& parameter = lists.parameters[i];
  return lists.gradients[i].layout() == at::kStrided && parameter.is_non_overlapping_and_dense() &&
         !parameter.is_neg() && (options.momentum == 0 || same_layout(parameter, lists.state[0][i]));
}

// Puts a copy that lies as its parameter in the place of each gradient that does not.
void lay_gradients_like_parameters(UpdateLists& lists) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    if (same_layout(lists.parameters[i], lists.gradients[i]) && !lists.gradients[i].is_neg()) continue;
    lists.gradients[i] = at::empty_like(lists.parameters[i]).copy_(lists.gradients[i]);
  }
}

void update_fused(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  lay_gradients_like_parameters(lists);
  const std::vector<at::Tensor> none;  // The kernel wants no buffers where there is no momentum.
  at::_fused_sgd_(lists.parameters, lists.gradients, options.momentum != 0 ? lists.state[0] : none,
                  options.weight_decay, options.momentum, lr, options.dampening, options.nesterov, options.maximize,
                  /*is_first_step=*/false);
  for (const at::Tensor& parameter : lists.parameters) count_write(parameter);  // The kernel does not.
}

// As `foreach` or `fused`; both want at least one tensor.
void update_together(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  if (lists.parameters.empty()) return;
  if (options.implementation() == OptimizerImplementation::fused) return update_fused(lists, options, lr);
  update_foreach(lists, options, lr);
}

// Those of which it holds, and the others.
template <class Question>
std::array<UpdateLists, 2> split(const UpdateLists& lists, const Question& holds) {
  std::array<UpdateLists, 2> parts;
  for (UpdateLists& part : parts) part.state.resize(lists.state.size());
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    UpdateLists& part = parts[holds(i) ? 0 : 1];
    part.parameters.push_back(lists.parameters[i]);
    part.gradients.push_back(lists.gradients[i]);
    for (std::size_t kind = 0; kind < lists.state.size(); ++kind) part.state[kind].push_back(lists.state[kind][i]);
  }
  return parts;
}

// One tensor after the other where told so, and those that do not go together with others: sparse gradients, and what
// the kernel does not take.
void update(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  const OptimizerImplementation implementation = options.implementation();
  if (implementation == OptimizerImplementation::for_loop) return update_plain(lists, options, lr);
  const auto goes_together = [&](std::size_t i) {
    if (implementation == OptimizerImplementation::fused) return kernel_takes(lists, options, i);
    return lists.gradients[i].layout() == at::kStrided;
  };
  std::size_t together = 0;
  while (together < lists.parameters.size() && goes_together(together)) ++together;
  if (together == lists.parameters.size()) return update_together(lists, options, lr);
  std::array<UpdateLists, 2> parts = split(lists, goes_together);
  update_together(parts[0], options, lr);
  update_plain(parts[1], options, lr);
}

// Reads no further than the first number that is not +0.
bool is_new(const at::Tensor& buffer) {
  if (!buffer.is_non_overlapping_and_dense()) return !buffer.view(at::kInt).any().item<bool>();
  const float* values = buffer.const_data_ptr<float>();
  return std::all_of(values, values + buffer.numel(),
                     [](float value) { return std::bit_cast<std::uint32_t>(value) == 0; });
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
  std::array<UpdateLists, 2> parts = split(lists, [&](std::size_t i) { return is_new(lists.state[0][i]); });
  update(parts[0], undamped, lr);
  update(parts[1], options, lr);
  for (const at::Tensor& buffer : lists.state[0]) {
    if (buffer.numel() > 0 && is_new(buffer)) *buffer.mutable_data_ptr<float>() = -0.0F;
  }
}

}  // namespace headrace
