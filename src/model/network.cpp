#include "model/network.h"

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <headrace/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/norm_relu_pool.h"

namespace headrace {
namespace {

// Weight and bias of a convolution or linear layer, drawn as nn.Conv2d and nn.Linear draw them (kaiming_uniform_ with
// a = sqrt(5), bias uniform in 1 / sqrt(fan_in)): the same doubles, the same draws in the same order.
struct Affine {
  at::Tensor weight, bias;

  explicit Affine(at::IntArrayRef shape) : weight(at::empty(shape)), bias(at::empty({shape[0]})) {
    double fan_in = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) fan_in *= static_cast<double>(shape[i]);
    const double slope = std::sqrt(5.0);
    const double gain = std::sqrt(2.0 / (1.0 + std::pow(slope, 2)));
    const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in));
    weight.uniform_(-bound, bound);
    const double bias_bound = 1.0 / std::sqrt(fan_in);
    bias.uniform_(-bias_bound, bias_bound);
    weight.requires_grad_();
    bias.requires_grad_();
  }

  void register_in(ModelState& state, const std::string& name) const {
    state.parameters.emplace_back(name + ".weight", weight);
    state.parameters.emplace_back(name + ".bias", bias);
  }
};

struct BatchNorm {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

  explicit BatchNorm(std::int64_t channels)
      : weight(at::ones({channels})),
        bias(at::zeros({channels})),
        running_mean(at::zeros({channels})),
        running_var(at::ones({channels})),
        num_batches_tracked(at::zeros({}, at::kLong)) {
    weight.requires_grad_();
    bias.requires_grad_();
  }

  at::Tensor operator()(const at::Tensor& input, bool training) const {
    if (training) num_batches_tracked.add_(1);
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, 0.1, 1e-5,
                          at::globalContext().userEnabledCuDNN());
  }

  at::Tensor fused_with_relu_and_pool(const at::Tensor& input, bool training) const {
    if (training) num_batches_tracked.add_(1);
    return norm_relu_pool(input, {weight, bias, running_mean, running_var}, {.training = training});
  }

  void register_in(ModelState& state, const std::string& name) const {
    state.parameters.emplace_back(name + ".weight", weight);
    state.parameters.emplace_back(name + ".bias", bias);
    state.buffers.emplace_back(name + ".running_mean", running_mean);
    state.buffers.emplace_back(name + ".running_var", running_var);
    state.buffers.emplace_back(name + ".num_batches_tracked", num_batches_tracked);
  }
};

class SmallCnn final : public Network {
 public:
  SmallCnn(std::int64_t channels, std::int64_t height, std::int64_t width, std::int64_t classes)
      : conv1_({32, channels, 3, 3}),
        bn1_(32),
        conv2_({64, 32, 3, 3}),
        bn2_(64),
        fc1_({128, 64 * (height / 4) * (width / 4)}),
        fc2_({classes, 128}) {}

  at::Tensor forward(const at::Tensor& images) override {
    const at::Tensor first = block(images, conv1_, bn1_);
    const at::Tensor second = block(first, conv2_, bn2_);
    const at::Tensor hidden = at::linear(second.flatten(1), fc1_.weight, fc1_.bias).relu_();
    return at::linear(hidden, fc2_.weight, fc2_.bias);
  }

  ModelState state() override {
    ModelState state;
    conv1_.register_in(state, "conv1");
    bn1_.register_in(state, "bn1");
    conv2_.register_in(state, "conv2");
    bn2_.register_in(state, "bn2");
    fc1_.register_in(state, "fc1");
    fc2_.register_in(state, "fc2");
    state.set_training = [this](bool training) { training_ = training; };
    return state;
  }

  void set_fusion(Fusion fusion) override { fusion_ = fusion; }

 private:
  // The Python twin clamps before it pools. Pooling first gives the same bits, since the larger of two clamped values
  // is the clamped larger one, and so does the gradient: where all four are negative it is zero either way. It clamps a
  // quarter of the elements, and in place, since neither operator's backward reads what is overwritten.
  at::Tensor block(const at::Tensor& input, const Affine& convolution, const BatchNorm& norm) const {
    const at::Tensor convolved = at::conv2d(input, convolution.weight, convolution.bias, 1, 1);
    if (fusion_ == Fusion::norm_relu_pool) return norm.fused_with_relu_and_pool(convolved, training_);
    return at::max_pool2d(norm(convolved, training_), 2).relu_();
  }

  Affine conv1_;
  BatchNorm bn1_;
  Affine conv2_;
  BatchNorm bn2_;
  Affine fc1_, fc2_;
  bool training_ = true;
  Fusion fusion_ = Fusion::none;
};

class Mlp final : public Network {
 public:
  Mlp(std::int64_t inputs, std::int64_t classes) : fc1_({128, inputs}), fc2_({classes, 128}) {}

  at::Tensor forward(const at::Tensor& images) override {
    const at::Tensor hidden = at::linear(images.flatten(1), fc1_.weight, fc1_.bias).relu_();
    return at::linear(hidden, fc2_.weight, fc2_.bias);
  }

  ModelState state() override {
    ModelState state;
    fc1_.register_in(state, "fc1");
    fc2_.register_in(state, "fc2");
    state.set_training = [](bool) {};  // No layer of it behaves differently.
    return state;
  }

  void set_fusion(Fusion) override {}  // It has none of the operators.

 private:
  Affine fc1_, fc2_;
};

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

[[noreturn]] void fail_unknown(const std::string& name) {
  const std::vector<std::string> names = network_names();
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  const bool near = edit_distance(name, *nearest) <= std::max<std::size_t>(2, name.size() / 3);
  fail(ErrorCode::invalid_argument, "model: unknown network \"{}\"{}; known: {}", name,
       near ? fmt::format(", did you mean {}?", *nearest) : std::string{}, fmt::join(names, ", "));
}

}  // namespace

std::unique_ptr<Network> make_network(const ModelOptions& options, int channels, int height, int width) {
  if (channels < 1 || height < 1 || width < 1 || options.classes < 2) {
    fail(ErrorCode::invalid_argument, "model: {}: wanted pictures and at least 2 classes, found {}x{}x{} and {}",
         options.name, channels, height, width, options.classes);
  }
  if (options.name == "mlp") {
    return std::make_unique<Mlp>(std::int64_t{channels} * height * width, options.classes);
  }
  if (options.name == "small_cnn") {
    if (height < 4 || width < 4) {
      fail(ErrorCode::invalid_argument, "model: small_cnn: wanted pictures of at least 4x4, found {}x{}", height,
           width);
    }
    auto network = std::make_unique<SmallCnn>(channels, height, width, options.classes);
    network->set_fusion(options.fusion);
    return network;
  }
  fail_unknown(options.name);
}

std::vector<std::string> network_names() {
  return {"small_cnn", "mlp"};
}

}  // namespace headrace
