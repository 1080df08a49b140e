// For tests: a network of two layers, batches for it, and plain descent.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/trainer.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace headrace::facade {

// The same weights each time.
struct Regression {
  torch::nn::Sequential net = made();
  ModelState model = module_state(net.ptr());

  at::Tensor loss(const TensorBatch& batch) { return at::mse_loss(net->forward(batch["inputs"]), batch["targets"]); }
  Forward forward() {
    return [this](const TensorBatch& batch) -> Output { return {loss(batch), {}}; };
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : model.parameters) all.push_back(parameter);
    return all;
  }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : tensors()) all.push_back(parameter.detach().clone());
    return all;
  }
  Optimizer descent(double lr = 0.05, double momentum = 0) const {
    return descent_over(model.parameters, lr, momentum);
  }
  // Leaves the first layer, whose gradients a backward makes too, alone.
  Optimizer descent_of_the_head(double lr = 0.05) const {
    return descent_over({model.parameters[2], model.parameters[3]}, lr, 0);
  }

 private:
  static torch::nn::Sequential made() {
    at::manual_seed(3);
    return torch::nn::Sequential{torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 1)};
  }
  static Optimizer descent_over(std::vector<std::pair<std::string, at::Tensor>> parameters, double lr,
                                double momentum) {
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.set_implementation(OptimizerImplementation::for_loop);  // The operators of torch::optim::SGD.
    options.lr = lr;
    options.momentum = momentum;
    options.weight_decay = 0;
    return Optimizer(std::move(parameters), options);
  }
};

// Of 16 samples, the same each time.
inline std::vector<TensorBatch> batches(int count) {
  at::manual_seed(5);
  std::vector<TensorBatch> all;
  for (int i = 0; i < count; ++i) {
    const at::Tensor inputs = at::randn({16, 4});
    all.push_back(TensorBatch{{"inputs", inputs}, {"targets", inputs.sum({1}, /*keepdim=*/true)}});
  }
  return all;
}

inline TensorBatch times(const TensorBatch& batch, double factor) {
  return TensorBatch{{"inputs", batch["inputs"].mul(factor)}, {"targets", batch["targets"]}};
}

inline void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted,
                        double tolerance = 0) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (tolerance == 0) {
      EXPECT_TRUE(found[i].equal(wanted[i])) << "parameter " << i;
    } else {
      EXPECT_TRUE(found[i].allclose(wanted[i], tolerance, tolerance)) << "parameter " << i;
    }
  }
}

}  // namespace headrace::facade
