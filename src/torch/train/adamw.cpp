#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adamw.h>

#include <cmath>

#include "torch/train/detail/update.h"

namespace headrace {
namespace {

enum Kind : std::size_t { kExpAvg, kExpAvgSq, kStep };

// The step count lives in a float tensor on the CPU, as PyTorch's; an operator to add 1 costs more than the addition.
float count_step(const at::Tensor& step) {
  return *step.mutable_data_ptr<float>() += 1.0F;
}

// The operators of _single_tensor_adam in torch/optim/adam.py 2.11, in its order.
void update_plain(const UpdateLists& lists, const OptimizerOptions& options, double lr) {
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    const at::Tensor& gradient = lists.gradients[i];
    const at::Tensor& exp_avg = lists.state[kExpAvg][i];
    const at::Tensor& exp_avg_sq = lists.state[kExpAvgSq][i];
    const at::Tensor& count = lists.state[kStep][i];
    count.add_(1);
    if (options.weight_decay != 0) parameter.mul_(1 - lr * options.weight_decay);
    exp_avg.lerp_(gradient, 1 - options.betas[0]);
    exp_avg_sq.mul_(options.betas[1]).addcmul_(gradient, gradient, 1 - options.betas[1]);
    const auto step = static_cast<double>(count.item<float>());
    const double step_size = lr / (1 - std::pow(options.betas[0], step));
    const double correction = std::sqrt(1 - std::pow(options.betas[1], step));
    const at::Tensor denominator = exp_avg_sq.sqrt().div_(correction).add_(options.eps);
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
  if (options.weight_decay != 0) at::_foreach_mul_(lists.parameters, 1 - lr * options.weight_decay);
  at::_foreach_lerp_(lists.state[kExpAvg], lists.gradients, 1 - options.betas[0]);
  at::_foreach_mul_(lists.state[kExpAvgSq], options.betas[1]);
  at::_foreach_addcmul_(lists.state[kExpAvgSq], lists.gradients, lists.gradients, 1 - options.betas[1]);
  const std::vector<at::Tensor> denominators = at::_foreach_sqrt(lists.state[kExpAvgSq]);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps);
  at::_foreach_addcdiv_(lists.parameters, lists.state[kExpAvg], denominators, step_sizes);
}

void update_fused(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  lay_gradients_like_parameters(lists);
  for (const at::Tensor& count : lists.state[kStep]) count_step(count);
  at::_fused_adamw_(lists.parameters, lists.gradients, lists.state[kExpAvg], lists.state[kExpAvgSq],
                    /*max_exp_avg_sqs=*/{}, lists.state[kStep], lr, options.betas[0], options.betas[1],
                    options.weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

std::vector<StateKind> adamw_state(const OptimizerOptions& /*options*/) {
  return {{"exp_avg", false}, {"exp_avg_sq", false}, {"step", true}};
}

void update_adamw(UpdateLists& lists, const OptimizerOptions& options, double lr) {
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
