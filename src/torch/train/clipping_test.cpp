// Clipping and reduced precision as the Trainer has them: once an update, on gradients without their loss scale.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/autocast.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

constexpr double kLr = 0.1;

// Two linear layers, each a group of the optimizer, or both one.
struct TwoLayers {
  Named parameters{{"first.weight", at::randn({6, 8}).requires_grad_()},
                   {"first.bias", at::randn({6}).requires_grad_()},
                   {"second.weight", at::randn({4, 6}).requires_grad_()}};
  at::ScalarType seen = at::kFloat;  // Of the last output.

  Trainer trainer(const TrainOptions& options, bool one_group = false) {
    OptimizerOptions sgd;
    sgd.name = OptimizerName::sgd;
    sgd.lr = kLr;
    sgd.weight_decay = 0;
    std::vector<ParameterGroup> groups{{parameters, sgd}};
    if (!one_group) groups = {{{parameters[0], parameters[1]}, sgd}, {{parameters[2]}, sgd}};
    return Trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(std::move(groups)), {}, options, {}, 100);
  }
  BoundForward forward(double size = 1.0) {
    return [this, size] {
      const at::Tensor hidden = at::linear(at::randn({5, 8}), parameters[0].second, parameters[1].second);
      const at::Tensor output = at::linear(hidden, parameters[2].second);
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
  for (const bool one_group : {false, true}) {
    for (const GradNormPer per : {GradNormPer::group, GradNormPer::layer}) {
      TwoLayers network;
      Trainer trainer = network.trainer({.max_grad_norm = 0.5, .grad_norm_per = per}, one_group);
      const std::int64_t norms = one_group && per == GradNormPer::group ? 1 : 2;
      for (int i = 0; i < 2; ++i) {
        if (i == 1) trainer.optimizer() = network.trainer({}, one_group).optimizer();  // Of the same parameters.
        trainer.step(network.forward(1e4), 5);
        EXPECT_EQ(trainer.clip_report().clipped, norms);
        EXPECT_NEAR(trainer.clip_report().norm_after, 0.5 * std::sqrt(static_cast<double>(norms)), 1e-6);
      }
    }
  }
}

// Of each tensor, by how much its elements or its rows moved at most.
std::vector<at::Tensor> moves(const Named& now, const Named& before, bool rows) {
  std::vector<at::Tensor> moves;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const at::Tensor moved = now[i].second.detach().sub(before[i].second).abs();
    moves.push_back(rows && moved.dim() > 1 ? moved.square().sum(1).sqrt() : rows ? moved.norm() : moved.max());
  }
  return moves;
}

TEST(Clipping, ByValueOrRatioMovesNoWeightFurther) {
  constexpr double kRounding = 1e-6;  // Of weights.
  TwoLayers network;
  TrainOptions options;
  options.clip_grad_value = 1e-3;
  Trainer trainer = network.trainer(options);
  Named before = clones(network.parameters);
  trainer.step(network.forward(1e4), 5);
  EXPECT_EQ(trainer.clip_report().clipped, 3);
  EXPECT_LE(trainer.clip_report().norm_after, 1e-3 * std::sqrt(6 * 8 + 6 + 4 * 6) * (1 + 1e-6));
  for (const at::Tensor& moved : moves(network.parameters, before, /*rows=*/false)) {
    EXPECT_NEAR(moved.item<double>(), kLr * 1e-3, kRounding);
  }
  options.clip_grad_value = 0;
  options.clip_grad_ratio = 0.01;
  Trainer adaptive = network.trainer(options);
  before = clones(network.parameters);
  adaptive.step(network.forward(1e4), 5);
  EXPECT_EQ(adaptive.clip_report().clipped, 6 + 1 + 4) << "rows, and the bias";
  const std::vector<at::Tensor> moved = moves(network.parameters, before, /*rows=*/true);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const at::Tensor& weight = before[i].second;
    const at::Tensor limit = (weight.dim() > 1 ? weight.square().sum(1).sqrt() : weight.norm()).mul(kLr * 0.01);
    EXPECT_LE(moved[i].sub(limit).max().item<double>(), 1e-5) << before[i].first;
  }
}

// The factor of loss scale, window and clip, the update and the averages in one walk, against each by itself.
TEST(Clipping, InTheWalkOfAFusedUpdateIsThatOfSeparatePasses) {
  OptimizerOptions fused, plain;
  fused.eps = plain.eps = 1;  // Or an update hardly tells the size of its gradient.
  fused.lr = plain.lr = 0.1;
  fused.set_implementation(OptimizerImplementation::fused);
  plain.set_implementation(OptimizerImplementation::for_loop);
  for (const double max_grad_norm : {0.0, 0.1}) {
    for (const double loss_scale : {0.0, 1024.0}) {
      TrainOptions options;
      options.gradient_accumulation_steps = 3;
      options.max_grad_norm = max_grad_norm;
      options.loss_scale = loss_scale;
      options.ema_decay = 0.5;
      const tiny::Training in_walk(options, fused), apart(options, plain);
      const Named before = clones(apart.weights());
      for (const tiny::Training* training : {&in_walk, &apart}) {
        at::manual_seed(7);
        tiny::train(*training, 9);
        EXPECT_EQ(training->trainer->progress().optimizer_steps, 3);
        EXPECT_EQ(training->trainer->progress().clipped_updates, max_grad_norm > 0 ? 3 : 0);
      }
      const Named found = in_walk.tensors(), wanted = apart.tensors();
      ASSERT_EQ(found.size(), wanted.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_LE((found[i].second - wanted[i].second).abs().max().item<double>(), 1e-6) << found[i].first;
      }
      EXPECT_GT((wanted[0].second - before[0].second).abs().max().item<double>(), 1e-4) << "it did move";
    }
  }
}

TEST(Clipping, OfAWindowIsThatOfItsMeanForAnotherOptimizerToo) {
  double squares = 0;
  TwoLayers network;
  TrainOptions options{.gradient_accumulation_steps = 2, .max_grad_norm = 0.5};
  options.loss_scale = 1024;
  Trainer trainer = network.trainer(options);
  trainer.external_optimizer = {"mine.Optimizer", [&](const std::function<double(double)>&) {
                                  for (const auto& [name, parameter] : network.parameters) {
                                    squares += parameter.grad().square().sum().item<double>();
                                  }
                                }};
  for (int i = 0; i < 2; ++i) trainer.step(network.forward(1e4), 5);
  EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-5);
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

TEST(ReducedPrecision, ALossOfFloat16OverflowsUnderItsScaleAndTheRunGoesOn) {
  TwoLayers network;
  Trainer trainer = network.trainer({.precision = Precision::fp16, .loss_scale = 65536});
  const auto forward = [&network] {
    return Output{at::linear(at::randn({5, 8}), network.parameters[0].second).mean(), {}};
  };
  EXPECT_EQ(trainer.step(forward, 5).scalar_type(), at::kFloat);
  EXPECT_EQ(trainer.progress().skipped_updates, 1);
  EXPECT_EQ(trainer.loss_scale(), 32768);
  trainer.step(forward, 5);
  EXPECT_EQ(trainer.progress().optimizer_steps, 1);
}

TEST(ReducedPrecision, UpdatesAreSeenWithinACallersScope) {
  const auto second_loss = [](bool one_scope) {
    at::manual_seed(3);
    TwoLayers network;
    Trainer trainer = network.trainer({});
    std::optional<Autocast> scope;
    at::Tensor loss;
    for (int i = 0; i < 2; ++i) {
      if (i == 0 || !one_scope) {
        scope.reset();
        scope.emplace(at::kCPU, at::kBFloat16);
      }
      loss = trainer.step(network.forward(), 5);
    }
    return loss.item<double>();
  };
  EXPECT_EQ(second_loss(true), second_loss(false));
}

TEST(ReducedPrecision, TheLossScaleStopsWhereItsInverseIsANormalNumber) {
  TwoLayers network;
  TrainOptions options;
  options.loss_scale = 1;
  Trainer trainer = network.trainer(options);
  trainer.progress().loss_scale = 0x1p126;
  trainer.progress().scale_good_updates = 1999;
  trainer.step(network.forward(1e-6), 5);
  EXPECT_EQ(trainer.progress().optimizer_steps, 1);
  EXPECT_EQ(trainer.progress().scale_good_updates, 0);
  EXPECT_EQ(trainer.loss_scale(), 0x1p126);
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
