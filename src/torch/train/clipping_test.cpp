// Clipping and reduced precision as the Trainer has them: once an update, on gradients without their loss scale.
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Two linear layers, each a group of the optimizer.
struct TwoLayers {
  Named parameters{{"first.weight", at::randn({6, 8}).requires_grad_()},
                   {"second.weight", at::randn({4, 6}).requires_grad_()}};
  at::ScalarType seen = at::kFloat;  // Of the last output.

  Trainer trainer(const TrainOptions& options) {
    OptimizerOptions sgd;
    sgd.name = OptimizerName::sgd;
    std::vector<ParameterGroup> groups;
    for (const auto& parameter : parameters) groups.push_back({{parameter}, sgd});
    return Trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(std::move(groups)), {}, options, {}, 100);
  }
  BoundForward forward(double size = 1.0) {
    return [this, size] {
      const at::Tensor hidden = at::linear(at::randn({5, 8}), parameters[0].second);
      const at::Tensor output = at::linear(hidden, parameters[1].second);
      seen = output.scalar_type();
      return Output{at::mse_loss(output, at::randn({5, 4})).mul(size), {}};
    };
  }
};

TEST(Clipping, IsDoneOnceAWindowAndReported) {
  for (const double loss_scale : {0.0, 1024.0}) {
    TrainOptions options{.gradient_accumulation_steps = 2, .max_grad_norm = 0.5};
    options.loss_scale = loss_scale;
    TwoLayers network;
    Trainer trainer = network.trainer(options);
    trainer.step(network.forward(1e4), 5);
    EXPECT_EQ(trainer.clip_report().norm_before, 0.0) << "the window is open";
    trainer.step(network.forward(1e4), 5);
    EXPECT_GT(trainer.clip_report().norm_before, 100.0) << "without the loss scale";
    EXPECT_NEAR(trainer.clip_report().norm_after, 0.5, 1e-6);
    EXPECT_EQ(trainer.progress().clipped_updates, 1);
    trainer.step(network.forward(1e-6), 5);
    trainer.step(network.forward(1e-6), 5);
    EXPECT_EQ(trainer.clip_report().norm_after, trainer.clip_report().norm_before);
    EXPECT_EQ(trainer.progress().clipped_updates, 1);
    EXPECT_EQ(trainer.progress().optimizer_steps, 2);
  }
}

TEST(Clipping, ByGroupOrLayerGivesEachANormOfItsOwn) {
  for (const GradNormPer per : {GradNormPer::group, GradNormPer::layer}) {
    TwoLayers network;
    Trainer trainer = network.trainer({.max_grad_norm = 0.5, .grad_norm_per = per});
    trainer.step(network.forward(1e4), 5);
    EXPECT_EQ(trainer.clip_report().clipped, 2);
    EXPECT_NEAR(trainer.clip_report().norm_after, std::sqrt(0.5), 1e-6);
  }
}

TEST(Clipping, ByValueOrRatioMovesNoWeightFurther) {
  TwoLayers network;
  TrainOptions options;
  options.clip_grad_value = 1e-3;
  Trainer trainer = network.trainer(options);
  trainer.step(network.forward(1e4), 5);
  EXPECT_EQ(trainer.clip_report().clipped, 2);
  EXPECT_LE(trainer.clip_report().norm_after, 1e-3 * std::sqrt(6 * 8 + 4 * 6) * (1 + 1e-6));
  options.clip_grad_value = 0;
  options.clip_grad_ratio = 0.01;
  Trainer adaptive = network.trainer(options);
  adaptive.step(network.forward(1e4), 5);
  EXPECT_EQ(adaptive.clip_report().clipped, 6 + 4) << "rows";
}

TEST(Clipping, OfTwoKindsIsRefused) {
  TwoLayers network;
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { network.trainer({.max_grad_norm = 1.0, .clip_grad_value = 1.0}); }),
      testing::HasSubstr("max_grad_norm and clip_grad_value are both set"));
}

TEST(Clipping, IsCountedOnInAResumedRun) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.max_grad_norm = 1e-6;
  const tiny::Training saved(options), loaded(options);
  tiny::train(saved, 3);
  ASSERT_EQ(saved.trainer->progress().clipped_updates, 3);
  const auto path = save_checkpoint(folder.path(), *saved.trainer, tiny::of_tiny(), 1);
  load_checkpoint(path, *loaded.trainer, "tiny", false);
  EXPECT_EQ(loaded.trainer->progress().clipped_updates, 3);
}

TEST(ReducedPrecision, OfAForwardLeavesLossAndWeightsInFloat32) {
  for (const auto& [precision, type] :
       {std::pair{Precision::bf16, at::kBFloat16}, std::pair{Precision::fp16, at::kHalf}}) {
    TwoLayers network;
    Trainer trainer = network.trainer({.precision = precision, .loss_scale = 8.0});
    const at::Tensor before = network.parameters[0].second.detach().clone();
    const at::Tensor loss = trainer.step(network.forward(), 5);
    EXPECT_EQ(network.seen, type);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_EQ(network.parameters[0].second.scalar_type(), at::kFloat);
    EXPECT_EQ(trainer.progress().optimizer_steps, 1);
    EXPECT_FALSE(network.parameters[0].second.equal(before));
  }
}

}  // namespace
}  // namespace headrace
