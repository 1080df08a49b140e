#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "torch/train/detail/update.h"

namespace headrace {
namespace {

enum Kind : std::size_t { kSquareAvg, kStep, kMomentumBuffer };

std::size_t grad_avg_of(const OptimizerOptions& options) {
  return kMomentumBuffer + (options.momentum > 0 ? 1U : 0U);
}

// The operators of _single_tensor_rmsprop in torch/optim/rmsprop.py 2.11, in its order.
void update_plain(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    at::Tensor gradient = options.maximize ? lists.gradients[i].neg() : lists.gradients[i];
    const at::Tensor& square_avg = lists.state[kSquareAvg][i];
    lists.state[kStep][i].add_(1);
    if (options.weight_decay != 0) gradient = gradient.add(parameter, options.weight_decay);
    square_avg.mul_(options.alpha).addcmul_(gradient, gradient, 1 - options.alpha);
    at::Tensor denominator;
    if (options.centered) {
      const at::Tensor& grad_avg = lists.state[grad_avg_of(options)][i];
      grad_avg.lerp_(gradient, 1 - options.alpha);
      denominator = square_avg.addcmul(grad_avg, grad_avg, -1).sqrt_();
    } else {
      denominator = square_avg.sqrt();
    }
    denominator.add_(options.eps);
    if (options.momentum > 0) {
      const at::Tensor& buffer = lists.state[kMomentumBuffer][i];
      buffer.mul_(options.momentum).addcdiv_(gradient, denominator);
      parameter.add_(buffer, -lr);
    } else {
      parameter.addcdiv_(gradient, denominator, -lr);
    }
  }
}

// The operators of _multi_tensor_rmsprop.
void update_foreach(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (const at::Tensor& count : lists.state[kStep]) count_step(count);
  std::vector<at::Tensor> gradients = options.maximize ? at::_foreach_neg(lists.gradients) : lists.gradients;
  if (options.weight_decay != 0) gradients = at::_foreach_add(gradients, lists.parameters, options.weight_decay);
  const std::vector<at::Tensor>& square_avgs = lists.state[kSquareAvg];
  at::_foreach_mul_(square_avgs, options.alpha);
  at::_foreach_addcmul_(square_avgs, gradients, gradients, 1 - options.alpha);
  std::vector<at::Tensor> denominators;
  if (options.centered) {
    const std::vector<at::Tensor>& grad_avgs = lists.state[grad_avg_of(options)];
    at::_foreach_lerp_(grad_avgs, gradients, 1 - options.alpha);
    denominators = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
    at::_foreach_sqrt_(denominators);
  } else {
    denominators = at::_foreach_sqrt(square_avgs);
  }
  at::_foreach_add_(denominators, options.eps);
  if (options.momentum > 0) {
    const std::vector<at::Tensor>& buffers = lists.state[kMomentumBuffer];
    at::_foreach_mul_(buffers, options.momentum);
    at::_foreach_addcdiv_(buffers, gradients, denominators);
    at::_foreach_add_(lists.parameters, buffers, -lr);
  } else {
    at::_foreach_addcdiv_(lists.parameters, gradients, denominators, -lr);
  }
}

}  // namespace

std::vector<StateKind> rmsprop_state(const OptimizerOptions& options) {
  std::vector<StateKind> kinds{{"square_avg", false}, {"step", true}};
  if (options.momentum > 0) kinds.push_back({"momentum_buffer", false});
  if (options.centered) kinds.push_back({"grad_avg", false});
  return kinds;
}

void update_rmsprop(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  if (options.implementation() == OptimizerImplementation::for_loop) return update_plain(lists, options, lr);
  update_foreach(lists, options, lr);
}

}  // namespace headrace
