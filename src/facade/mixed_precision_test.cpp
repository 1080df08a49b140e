#include <ATen/ops/mm.h>
#include <gtest/gtest.h>
#include <headrace/autocast.h>
#include <headrace/facade/mixed_precision.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"
#include "torch/device/accelerator.h"

namespace headrace::facade {
namespace {

TEST(MixedPrecision, IsOnWhereThereIsCudaAndElseSaysWhyNot) {
  std::string why_not;
  const bool has_cuda = accelerator_of(at::Device(at::kCUDA, 0), why_not) != nullptr;
  const MixedPrecision outcome = setup_mixed_precision_training();
  EXPECT_EQ(outcome.enabled, has_cuda);
  EXPECT_EQ(outcome.scaler.has_value(), has_cuda);
  EXPECT_EQ(outcome.report.key, "mixed_precision");
  EXPECT_EQ(outcome.report.requested, "true");
  EXPECT_EQ(outcome.report.applied, has_cuda ? "true" : "false");
  EXPECT_EQ(outcome.report.reason, has_cuda ? "" : "wanted CUDA, found none: " + why_not);
  if (has_cuda) {
    EXPECT_EQ(outcome.scaler->get_scale(), 65536.0);
  }
}

TEST(MixedPrecision, IsOffWhereTheConfigurationSaysSoByAnyOfItsNames) {
  for (const TrainingConfig& config : {TrainingConfig{.enable_mixed_precision = false},
                                       TrainingConfig{.mixed_precision = false}, TrainingConfig{.enable_amp = false}}) {
    const MixedPrecision outcome = setup_mixed_precision_training(config);
    EXPECT_FALSE(outcome.enabled);
    EXPECT_FALSE(outcome.scaler.has_value());
    EXPECT_EQ(outcome.report.requested, "false");
    EXPECT_EQ(outcome.report.reason, "");
  }
  const TrainingConfig contradictory{.mixed_precision = true, .enable_amp = false};
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument, [&] { setup_mixed_precision_training(contradictory); }),
      "facade: mixed precision: wanted one value, found mixed_precision=true, enable_amp=false, which are names of "
      "the same setting");
}

TEST(MixedPrecision, TheExampleTrainsAsTheLoopOfLibTorchWithoutAScaler) {
  Regression theirs, ours;
  torch::optim::SGD sgd(theirs.tensors(), torch::optim::SGDOptions(0.05));
  Optimizer optimizer = ours.descent();
  GradScaler off({}, /*enabled=*/false);
  int i = 0;
  for (const TensorBatch& batch : batches(20)) {
    sgd.zero_grad();
    const at::Tensor loss = theirs.loss(batch);
    loss.backward();
    sgd.step();
    GradScaler* const scaler = i++ % 2 == 0 ? nullptr : &off;
    EXPECT_EQ(training_step_with_amp(ours.forward(), batch, optimizer, scaler), loss.item<double>());
  }
  expect_same(ours.tensors(), theirs.tensors());
}

TEST(MixedPrecision, WithAScalerIsForwardUnderAutocastAndAnUpdateWithoutTheLossScale) {
  Regression theirs, ours;
  torch::optim::SGD sgd(theirs.tensors(), torch::optim::SGDOptions(0.05));
  Optimizer optimizer = ours.descent();
  GradScaler scaler;
  std::vector<at::ScalarType> seen;
  const Forward forward = [&](const TensorBatch& batch) -> Output {
    const at::Tensor& inputs = batch["inputs"];
    seen.push_back(at::mm(inputs, inputs.t()).scalar_type());
    return {ours.loss(batch), {}};
  };
  for (const TensorBatch& batch : batches(5)) {
    sgd.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      loss = theirs.loss(batch);
    }
    loss.mul(65536.0).backward();
    for (const at::Tensor& parameter : theirs.tensors()) parameter.grad().mul_(1.0 / 65536.0);
    sgd.step();
    EXPECT_EQ(training_step_with_amp(forward, batch, optimizer, &scaler), loss.item<double>());
  }
  EXPECT_EQ(seen, std::vector<at::ScalarType>(5, at::kBFloat16));
  expect_same(ours.tensors(), theirs.tensors());
}

TEST(MixedPrecision, AnOverflowLeavesTheUpdateOutAndHalvesTheScale) {
  Regression regression;
  Optimizer optimizer = regression.descent();
  GradScaler scaler;
  const std::vector<at::Tensor> before = regression.copies();
  training_step_with_amp(regression.forward(), times(batches(1)[0], 1e18), optimizer, &scaler);
  expect_same(regression.tensors(), before);
  EXPECT_EQ(scaler.get_scale(), 32768.0);
}

}  // namespace
}  // namespace headrace::facade
