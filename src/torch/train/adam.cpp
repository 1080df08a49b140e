#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/maximum.h>

#include <cmath>

#include "torch/train/detail/update.h"

// AdamW and Adam, which differ in where weight decay goes alone.

namespace headrace {
namespace {

enum Kind : std::size_t { kExpAvg, kExpAvgSq, kStep, kMaxExpAvgSq };

bool is_decoupled(const OptimizerOptions& options) {
  return options.name == OptimizerName::adamw;
}

// The operators of _single_tensor_adam in torch/optim/adam.py 2.11, in its order.
void update_plain(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    at::Tensor gradient = options.maximize ? lists.gradients[i].neg() : lists.gradients[i];
    const at::Tensor& exp_avg = lists.state[kExpAvg][i];
    const at::Tensor& exp_avg_sq = lists.state[kExpAvgSq][i];
    const at::Tensor& count = lists.state[kStep][i];
    count.add_(1);
    if (options.weight_decay != 0) {
      if (is_decoupled(options)) {
        parameter.mul_(1 - lr * options.weight_decay);
      } else {
        gradient = gradient.add(parameter, options.weight_decay);
      }
    }
    exp_avg.lerp_(gradient, 1 - options.betas[0]);
    exp_avg_sq.mul_(options.betas[1]).addcmul_(gradient, gradient, 1 - options.betas[1]);
    at::Tensor square = exp_avg_sq;
    if (options.amsgrad) {
      square = lists.state[kMaxExpAvgSq][i];
      at::maximum_out(square, square, exp_avg_sq);
    }
    const auto step = static_cast<double>(count.item<float>());
    const double step_size = lr / (1 - std::pow(options.betas[0], step));
    const double correction = std::sqrt(1 - std::pow(options.betas[1], step));
    const at::Tensor denominator = square.sqrt().div_(correction).add_(options.eps);
    parameter.addcdiv_(exp_avg, denominator, -step_size);
  }
}

// The operators of _multi_tensor_adam.
void update_foreach(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  std::vector<at::Scalar> step_sizes, corrections;
  for (const at::Tensor& count : lists.state[kStep]) {
    const double step = count_step(count);
    step_sizes.emplace_back(-lr / (1 - std::pow(options.betas[0], step)));
    corrections.emplace_back(std::sqrt(1 - std::pow(options.betas[1], step)));
  }
  std::vector<at::Tensor> gradients = options.maximize ? at::_foreach_neg(lists.gradients) : lists.gradients;
  if (options.weight_decay != 0) {
    if (is_decoupled(options)) {
      at::_foreach_mul_(lists.parameters, 1 - lr * options.weight_decay);
    } else {
      gradients = at::_foreach_add(gradients, lists.parameters, options.weight_decay);
    }
  }
  at::_foreach_lerp_(lists.state[kExpAvg], gradients, 1 - options.betas[0]);
  at::_foreach_mul_(lists.state[kExpAvgSq], options.betas[1]);
  at::_foreach_addcmul_(lists.state[kExpAvgSq], gradients, gradients, 1 - options.betas[1]);
  if (options.amsgrad) at::_foreach_maximum_(lists.state[kMaxExpAvgSq], lists.state[kExpAvgSq]);
  const std::vector<at::Tensor> denominators =
      at::_foreach_sqrt(lists.state[options.amsgrad ? kMaxExpAvgSq : kExpAvgSq]);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps);
  at::_foreach_addcdiv_(lists.parameters, lists.state[kExpAvg], denominators, step_sizes);
}

}  // namespace

std::vector<StateKind> adam_state(const OptimizerOptions& options) {
  std::vector<StateKind> kinds{{"exp_avg", false}, {"exp_avg_sq", false}, {"step", true}};
  if (options.amsgrad) kinds.push_back({"max_exp_avg_sq", false});
  return kinds;
}

void update_adam(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  if (options.implementation() == OptimizerImplementation::for_loop) return update_plain(lists, options, lr);
  update_foreach(lists, options, lr);
}

}  // namespace headrace
