#include <ATen/ops/mm.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/autocast.h>
#include <headrace/clip_gradients.h>
#include <headrace/facade/rx_vision_trainer.h>
#include <headrace/loader.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;

class Mine : public RxVisionTrainer {
 public:
  Mine(Regression& regression, Optimizer optimizer, const HyperParameters& hparams = {},
       std::optional<GradScaler> given = std::nullopt)
      : RxVisionTrainer(regression.model, std::move(optimizer), hparams, std::move(given)), regression_(regression) {}

  at::Tensor compute_loss(const TensorBatch& batch) override { return regression_.loss(batch); }

 private:
  Regression& regression_;
};

// Written by hand with LibTorch's own classes; returns the losses.
std::vector<double> train_by_hand(Regression& regression, const std::vector<at::Tensor>& stepped,
                                  const std::vector<TensorBatch>& data, double max_grad_norm) {
  torch::optim::SGD optimizer(stepped, torch::optim::SGDOptions(0.05));
  std::vector<double> losses;
  for (const TensorBatch& batch : data) {
    regression.net->zero_grad();
    const at::Tensor loss = regression.loss(batch);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(stepped, max_grad_norm);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(RxVisionTrainer, TrainsAsTheLoopOfLibTorchWithClippedGradients) {
  for (const bool is_scaled : {false, true}) {
    Regression theirs, ours;
    train_by_hand(theirs, theirs.tensors(), batches(20), 0.25);
    Mine trainer(ours, ours.descent(), {.max_grad_norm = 0.25},
                 is_scaled ? std::optional<GradScaler>(GradScaler()) : std::nullopt);
    trainer.fit(batches(20));
    EXPECT_EQ(trainer.scaler->is_enabled(), is_scaled);
    expect_same(ours.tensors(), theirs.tensors(), 1e-6);
  }
}

TEST(RxVisionTrainer, HasTheBitsOfTheLoopWhereNothingIsClipped) {
  Regression theirs, ours;
  const std::vector<double> losses = train_by_hand(theirs, theirs.tensors(), batches(20), 1e6);
  Mine trainer(ours, ours.descent(), {.max_grad_norm = 1e6});
  const std::vector<double> means = trainer.fit(batches(20));
  expect_same(ours.tensors(), theirs.tensors());
  double sum = 0;
  for (const double loss : losses) sum += loss;
  ASSERT_EQ(means.size(), 1U);
  EXPECT_DOUBLE_EQ(means[0], sum / 20);
}

// An update at a rate of 1 takes the clipped gradient from the weights.
double norm_of_an_update(const HyperParameters& hparams, double loss_scale) {
  Regression regression;
  const std::vector<at::Tensor> before = regression.copies();
  Mine trainer(regression, regression.descent(1.0), hparams, GradScaler(GradScalerState{.scale = loss_scale}));
  trainer.training_step(times(batches(1)[0], 100), 0);
  double squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double norm = regression.tensors()[i].detach().sub(before[i]).norm().item<double>();
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

TEST(RxVisionTrainer, ClipsOnceAfterTheLossScaleWasTakenOff) {
  // Clipped before, it would be 0.25 / 65536; without clipping it is far above.
  EXPECT_NEAR(norm_of_an_update({.max_grad_norm = 0.25}, 65536), 0.25, 1e-4);
  EXPECT_NEAR(norm_of_an_update({.gradient_clip_val = 0.25}, 1), 0.25, 1e-4);
  EXPECT_NEAR(norm_of_an_update({}, 65536), 1.0, 1e-4);
  EXPECT_GT(norm_of_an_update({.max_grad_norm = 1e6}, 65536), 10);
}

TEST(RxVisionTrainer, HasOneLimitByTwoNames) {
  Regression regression;
  EXPECT_FALSE(Mine::automatic_optimization);
  const Mine plain(regression, regression.descent());
  EXPECT_EQ(plain.hparams().max_grad_norm, 1.0);
  const Mine other(regression, regression.descent(), {.gradient_clip_val = 0.5});
  EXPECT_EQ(other.hparams().max_grad_norm, 0.5);
  const Mine both(regression, regression.descent(), {.max_grad_norm = 0.5, .gradient_clip_val = 0.5});
  EXPECT_EQ(both.hparams().gradient_clip_val, 0.5);
  const auto refusal = [&](const HyperParameters& hparams) {
    return error_of(ErrorCode::invalid_argument, [&] { Mine(regression, regression.descent(), hparams); });
  };
  EXPECT_EQ(
      refusal({.max_grad_norm = 1.0, .gradient_clip_val = 0.5}),
      "facade: hparams: clipping: wanted one value, found max_grad_norm=1, gradient_clip_val=0.5, which are names "
      "of the same setting");
  EXPECT_EQ(refusal({.max_grad_norm = 0.0}), "facade: hparams.max_grad_norm: wanted a number above 0, found 0");
  EXPECT_THAT(refusal({.max_grad_norm = std::nan("")}), HasSubstr("found nan"));
}

TEST(RxVisionTrainer, ClipsByTheGradientsOfWhatItsOptimizerSteps) {
  Regression theirs, ours;
  train_by_hand(theirs, {theirs.tensors()[2], theirs.tensors()[3]}, batches(5), 0.25);
  Mine(ours, ours.descent_of_the_head(), {.max_grad_norm = 0.25}).fit(batches(5));
  expect_same(ours.tensors(), theirs.tensors(), 1e-6);
}

// The example: all is written by hand, and gradients are never released by it.
class ByHand final : public Mine {
 public:
  using Mine::Mine;
  int configured = 0;
  std::vector<std::int64_t> indices;

  void configure_training() override {
    ++configured;
    scaler.emplace();
  }
  at::Tensor training_step(const TensorBatch& batch, std::int64_t batch_idx) override {
    indices.push_back(batch_idx);
    at::Tensor loss;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16, /*enabled=*/false);
      loss = compute_loss(batch);
    }
    scaler->scale(loss).backward();
    scaler->unscale_(optimizers());
    std::vector<at::Tensor> tensors;
    for (const auto& [name, parameter] : parameters()) tensors.push_back(parameter);
    clip_gradients(tensors, {}, {.max_norm = *hparams().max_grad_norm});
    scaler->step(optimizers(), [](double lr) { return lr; });
    scaler->update();
    return loss.detach();
  }
};

TEST(RxVisionTrainer, TheExampleOfManualOptimizationTrainsAsTheLoopOfLibTorch) {
  Regression theirs, ours;
  std::vector<TensorBatch> twice = batches(10);
  for (const TensorBatch& batch : batches(10)) twice.push_back(batch);
  train_by_hand(theirs, theirs.tensors(), twice, 1.0);
  ByHand trainer(ours, ours.descent(), {.max_grad_norm = 1.0});
  const std::vector<double> means = trainer.fit(batches(10), /*epochs=*/2);
  expect_same(ours.tensors(), theirs.tensors(), 1e-6);
  EXPECT_LT(means.at(1), means.at(0));
  EXPECT_EQ(trainer.configured, 1);
  ASSERT_EQ(trainer.indices.size(), 20U);
  EXPECT_EQ(trainer.indices[9], 9);
  EXPECT_EQ(trainer.indices[10], 0);
}

TEST(RxVisionTrainer, LeavesTheWeightsWhereAnOverflowIsForgiven) {
  Regression regression;
  const std::vector<at::Tensor> before = regression.copies();
  Mine trainer(regression, regression.descent(), {}, GradScaler());
  trainer.training_step(times(batches(1)[0], 1e18), 0);
  expect_same(regression.tensors(), before);
  EXPECT_EQ(trainer.scaler->get_scale(), 32768.0);
}

class Seen final : public Mine {
 public:
  using Mine::Mine;
  at::ScalarType dtype = at::kDouble;
  at::Tensor compute_loss(const TensorBatch& batch) override {
    dtype = at::mm(batch["inputs"], parameters()[0].second.t()).scalar_type();
    return Mine::compute_loss(batch);
  }
};

TEST(RxVisionTrainer, ComputesInFullPrecisionOnACpuAlsoWithinAutocast) {
  Regression regression;
  Seen trainer(regression, regression.descent());
  const Autocast autocast(at::kCPU, at::kBFloat16);
  trainer.training_step(batches(1)[0], 0);
  EXPECT_EQ(trainer.dtype, at::kFloat);
}

TEST(RxVisionTrainer, NamesAnEpochWithoutABatchAndAModelWithoutParameters) {
  Regression regression;
  Mine trainer(regression, regression.descent());
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { trainer.fit(std::vector<TensorBatch>{}); }),
            "facade: fit: wanted a batch in epoch 0, found none");
  Optimizer optimizer = regression.descent();
  regression.model.parameters.clear();
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { Mine(regression, std::move(optimizer)); }),
            "facade: model: wanted one with parameters, found none");
}

class OverImages final : public RxVisionTrainer {
 public:
  explicit OverImages(const tiny::Cnn& network)
      : RxVisionTrainer(network.state(), Optimizer(network.state().parameters, OptimizerOptions{})),
        network_(network) {}
  std::vector<std::int64_t> sizes;
  at::Tensor compute_loss(const TensorBatch& batch) override {
    sizes.push_back(batch.size());
    return network_(batch).loss;
  }

 private:
  const tiny::Cnn& network_;
};

TEST(RxVisionTrainer, TrainsOnTheBatchesOfALoader) {
  at::manual_seed(1);
  tiny::Cnn network;
  network.state().set_training(false);
  Loader loader(std::make_shared<tiny::Images>(12), tiny::batches_of(4), /*seed=*/1, /*training=*/true);
  OverImages trainer(network);
  EXPECT_EQ(trainer.fit(loader, /*epochs=*/2).size(), 2U);
  EXPECT_EQ(trainer.sizes, (std::vector<std::int64_t>{4, 4, 4, 4, 4, 4}));
  EXPECT_TRUE(network.training());
}

}  // namespace
}  // namespace headrace::facade
