#include "torch/model/layers.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "core/base/fail.h"
#include "torch/model/norm_relu_pool.h"

namespace headrace {
namespace {

double fan_in(const at::Tensor& weight) {
  double product = 1;
  for (const std::int64_t extent : weight.sizes().slice(1)) product *= static_cast<double>(extent);
  return product;
}

// kaiming_uniform_ with a = sqrt(5): the same doubles as in torch.nn.init.
void draw_weight(at::Tensor& weight) {
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1.0 + std::pow(slope, 2)));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in(weight)));
  weight.uniform_(-bound, bound);
  weight.requires_grad_();
}

at::Tensor drawn_bias(const at::Tensor& weight) {
  at::Tensor bias = at::empty({weight.size(0)});
  const double bound = 1.0 / std::sqrt(fan_in(weight));
  bias.uniform_(-bound, bound);
  bias.requires_grad_();
  return bias;
}

// Counts a batch of training, and says how much its statistics weigh in the running ones.
double counted_momentum(const BatchNorm& norm, NormMode mode) {
  norm.num_batches_tracked.add_(1);
  if (mode == NormMode::training) return norm.settings.momentum;
  const auto count = norm.num_batches_tracked.item<std::int64_t>();
  if (count == 1) {  // 0 times a statistic that is not finite would stay.
    norm.running_mean.zero_();
    norm.running_var.fill_(1);
  }
  return 1.0 / static_cast<double>(count);
}

}  // namespace

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().clone();
}

Linear::Linear(std::int64_t inputs, std::int64_t outputs) : weight(at::empty({outputs, inputs})) {
  draw_weight(weight);
  bias = drawn_bias(weight);
}

at::Tensor Linear::operator()(const at::Tensor& input) const {
  return at::linear(input, weight, bias);
}

void Linear::register_in(ModelState& state, const std::string& name) const {
  state.parameters.emplace_back(name + ".weight", weight);
  state.parameters.emplace_back(name + ".bias", bias);
}

Linear Linear::copied() const {
  Linear copy = *this;
  copy.weight = copy_of(weight);
  copy.bias = copy_of(bias);
  return copy;
}

Convolution::Convolution(const ConvolutionShape& shape)
    : weight(at::empty({shape.outputs, shape.inputs / shape.groups, shape.kernel, shape.kernel})),
      stride(shape.stride),
      padding(shape.padding),
      groups(shape.groups) {
  draw_weight(weight);
  if (shape.bias) bias = drawn_bias(weight);
}

at::Tensor Convolution::operator()(const at::Tensor& input) const {
  return at::conv2d(input, weight, bias, stride, padding, /*dilation=*/1, groups);
}

void Convolution::register_in(ModelState& state, const std::string& name) const {
  state.parameters.emplace_back(name + ".weight", weight);
  if (bias.defined()) state.parameters.emplace_back(name + ".bias", bias);
}

Convolution Convolution::copied() const {
  Convolution copy = *this;
  copy.weight = copy_of(weight);
  if (bias.defined()) copy.bias = copy_of(bias);
  return copy;
}

BatchNorm::BatchNorm(std::int64_t channels, const BatchNormSettings& given)
    : weight(at::ones({channels})),
      bias(at::zeros({channels})),
      running_mean(at::zeros({channels})),
      running_var(at::ones({channels})),
      num_batches_tracked(at::zeros({}, at::kLong)),
      settings(given) {
  weight.requires_grad_();
  bias.requires_grad_();
}

bool BatchNorm::is_frozen() const {
  return !weight.requires_grad() && !bias.requires_grad();
}

at::Tensor BatchNorm::operator()(const at::Tensor& input, NormMode mode) const {
  const bool training = mode != NormMode::evaluation && !is_frozen();
  // ATen would divide by 0 and leave NaN in the running variance; torch.nn.functional.batch_norm refuses as we do.
  if (training && input.numel() <= weight.numel()) {
    fail(ErrorCode::invalid_argument,
         "model: batch normalisation in training wants more than 1 value a channel, "
         "found a batch of ({})",
         fmt::join(input.sizes(), ", "));
  }
  const double momentum = training ? counted_momentum(*this, mode) : settings.momentum;
  return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, settings.epsilon,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor BatchNorm::with_relu_and_pool(const at::Tensor& input, NormMode mode) const {
  const bool training = mode != NormMode::evaluation && !is_frozen();
  const double momentum = training ? counted_momentum(*this, mode) : settings.momentum;
  return norm_relu_pool(input, {weight, bias, running_mean, running_var},
                        {.training = training, .momentum = momentum, .epsilon = settings.epsilon});
}

BatchNorm BatchNorm::with_own_statistics() const {
  BatchNorm result = *this;
  result.running_mean = copy_of(running_mean);
  result.running_var = copy_of(running_var);
  result.num_batches_tracked = copy_of(num_batches_tracked);
  return result;
}

void BatchNorm::register_in(ModelState& state, const std::string& name) const {
  state.parameters.emplace_back(name + ".weight", weight);
  state.parameters.emplace_back(name + ".bias", bias);
  state.buffers.emplace_back(name + ".running_mean", running_mean);
  state.buffers.emplace_back(name + ".running_var", running_var);
  state.buffers.emplace_back(name + ".num_batches_tracked", num_batches_tracked);
}

void NormedConvolution::register_in(ModelState& state, const std::string& name, const std::string& norm_name) const {
  convolution.register_in(state, name);
  if (norm) norm->register_in(state, norm_name);
}

NormedConvolution NormedConvolution::folded() const {
  c10::AutoGradMode no_graph(false);
  NormedConvolution result = *this;
  result.norm.reset();
  at::Tensor scale = at::ones({convolution.weight.size(0)}, at::kDouble);
  at::Tensor offset = at::zeros({convolution.weight.size(0)}, at::kDouble);
  if (convolution.bias.defined()) offset = convolution.bias.to(at::kDouble);
  if (norm) {
    scale = norm->weight.to(at::kDouble) * at::rsqrt(norm->running_var.to(at::kDouble) + norm->settings.epsilon);
    offset = (offset - norm->running_mean.to(at::kDouble)) * scale + norm->bias.to(at::kDouble);
  }
  const at::Tensor& weight = convolution.weight;
  result.convolution.weight = (weight.to(at::kDouble) * scale.view({-1, 1, 1, 1})).to(weight.scalar_type());
  result.convolution.bias = offset.to(weight.scalar_type());
  return result;
}

NormedConvolution NormedConvolution::with_own_statistics() const {
  NormedConvolution result = *this;
  if (norm) result.norm = norm->with_own_statistics();
  return result;
}

LayerNorm::LayerNorm(std::int64_t size, double epsilon_given)
    : weight(at::ones({size})), bias(at::zeros({size})), epsilon(epsilon_given) {
  weight.requires_grad_();
  bias.requires_grad_();
}

at::Tensor LayerNorm::operator()(const at::Tensor& input) const {
  return at::layer_norm(input, {weight.size(0)}, weight, bias, epsilon);
}

void LayerNorm::register_in(ModelState& state, const std::string& name) const {
  state.parameters.emplace_back(name + ".weight", weight);
  state.parameters.emplace_back(name + ".bias", bias);
}

LayerNorm LayerNorm::copied() const {
  LayerNorm copy = *this;
  copy.weight = copy_of(weight);
  copy.bias = copy_of(bias);
  return copy;
}

at::Tensor mean_of_images(const at::Tensor& images) {
  return at::adaptive_avg_pool2d(images, {1, 1}).flatten(1);
}

}  // namespace headrace
