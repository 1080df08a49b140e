#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <headrace/error.h>
#include <headrace/optimizer.h>

#include <cmath>

namespace headrace {
namespace {

// The fused kernel walks parameter, gradient and state by address: they must lie alike. Dimensions of one element may
// have any stride.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

// The step count lives in a float tensor on the CPU, as PyTorch's; an operator to add 1 costs more than the addition.
float count_step(const at::Tensor& step) {
  return *step.mutable_data_ptr<float>() += 1.0F;
}

}  // namespace

Optimizer::Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options)
    : options_(options), parameters_(std::move(parameters)) {
  c10::AutoGradMode no_graph(false);
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.defined() || parameter.scalar_type() != at::kFloat || !parameter.is_cpu()) {
      fail(ErrorCode::invalid_argument, "train: parameter {}: wanted float32 on the CPU", name);
    }
    exp_avg_.push_back(at::zeros_like(parameter));  // In the parameter's layout.
    exp_avg_sq_.push_back(at::zeros_like(parameter));
    step_.push_back(at::zeros({}, at::kFloat));
  }
}

void Optimizer::step(double rate) {
  c10::AutoGradMode no_graph(false);
  lists_.parameters.clear();
  lists_.gradients.clear();
  lists_.exp_avg.clear();
  lists_.exp_avg_sq.clear();
  lists_.step.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    lists_.parameters.push_back(parameter);
    lists_.gradients.push_back(gradient);
    lists_.exp_avg.push_back(exp_avg_[i]);
    lists_.exp_avg_sq.push_back(exp_avg_sq_[i]);
    lists_.step.push_back(step_[i]);
  }
  if (lists_.parameters.empty()) return;
  switch (options_.implementation) {
    case OptimizerImplementation::plain:
      step_plain(rate);
      break;
    case OptimizerImplementation::foreach_:
      step_foreach(rate);
      break;
    case OptimizerImplementation::fused:
      step_fused(rate);
      break;
  }
  lists_.gradients.clear();  // Or they would outlive zero_gradients().
}

// The operators of _single_tensor_adam in torch/optim/adam.py 2.11, in its order.
void Optimizer::step_plain(double rate) {
  for (std::size_t i = 0; i < lists_.parameters.size(); ++i) {
    const at::Tensor& parameter = lists_.parameters[i];
    const at::Tensor& gradient = lists_.gradients[i];
    const at::Tensor& exp_avg = lists_.exp_avg[i];
    const at::Tensor& exp_avg_sq = lists_.exp_avg_sq[i];
    lists_.step[i].add_(1);
    if (options_.weight_decay != 0) parameter.mul_(1 - rate * options_.weight_decay);
    exp_avg.lerp_(gradient, 1 - options_.beta1);
    exp_avg_sq.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
    const auto step = static_cast<double>(lists_.step[i].item<float>());
    const double step_size = rate / (1 - std::pow(options_.beta1, step));
    const double correction = std::sqrt(1 - std::pow(options_.beta2, step));
    const at::Tensor denominator = exp_avg_sq.sqrt().div_(correction).add_(options_.epsilon);
    parameter.addcdiv_(exp_avg, denominator, -step_size);
  }
}

// The operators of _multi_tensor_adam.
void Optimizer::step_foreach(double rate) {
  std::vector<at::Scalar> step_sizes, corrections;
  for (const at::Tensor& count : lists_.step) {
    const double step = count_step(count);
    step_sizes.emplace_back(-rate / (1 - std::pow(options_.beta1, step)));
    corrections.emplace_back(std::sqrt(1 - std::pow(options_.beta2, step)));
  }
  if (options_.weight_decay != 0) at::_foreach_mul_(lists_.parameters, 1 - rate * options_.weight_decay);
  at::_foreach_lerp_(lists_.exp_avg, lists_.gradients, 1 - options_.beta1);
  at::_foreach_mul_(lists_.exp_avg_sq, options_.beta2);
  at::_foreach_addcmul_(lists_.exp_avg_sq, lists_.gradients, lists_.gradients, 1 - options_.beta2);
  const std::vector<at::Tensor> denominators = at::_foreach_sqrt(lists_.exp_avg_sq);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options_.epsilon);
  at::_foreach_addcdiv_(lists_.parameters, lists_.exp_avg, denominators, step_sizes);
}

void Optimizer::step_fused(double rate) {
  for (std::size_t i = 0; i < lists_.parameters.size(); ++i) {
    if (!same_layout(lists_.parameters[i], lists_.gradients[i])) {
      lists_.gradients[i] = at::empty_like(lists_.parameters[i]).copy_(lists_.gradients[i]);
    }
    count_step(lists_.step[i]);
  }
  at::_fused_adamw_(lists_.parameters, lists_.gradients, lists_.exp_avg, lists_.exp_avg_sq, /*max_exp_avg_sqs=*/{},
                    lists_.step, rate, options_.beta1, options_.beta2, options_.weight_decay, options_.epsilon,
                    /*amsgrad=*/false, /*maximize=*/false);
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
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    state.emplace_back(parameters_[i].first + "/exp_avg", exp_avg_[i]);
    state.emplace_back(parameters_[i].first + "/exp_avg_sq", exp_avg_sq_[i]);
    state.emplace_back(parameters_[i].first + "/step", step_[i]);
  }
  return state;
}

}  // namespace headrace
