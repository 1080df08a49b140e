#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/gradient_accumulation.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/error_of.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GradientAccumulation, StepsFitInto64SamplesAndTheEffectiveBatchSizeIsReturned) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> steps_of{{1, 64}, {3, 21}, {8, 8},  {16, 4}, {24, 2},
                                                                    {33, 1}, {48, 1}, {64, 1}, {128, 1}};
  for (const auto& [batch_size, steps] : steps_of) {
    EXPECT_EQ(setup_gradient_accumulation({.batch_size = batch_size}), steps) << batch_size;
    EXPECT_EQ(effective_batch_size({.batch_size = batch_size}), batch_size * steps);
  }
}

TEST(GradientAccumulation, RefusesABatchSizeThatIsMissingOrBelowOne) {
  for (const auto& call : {setup_gradient_accumulation, effective_batch_size}) {
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { call({}); }),
              "facade: config.batch_size: wanted a whole number of at least 1, found none");
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { call({.batch_size = 0}); }), HasSubstr("found 0"));
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { call({.batch_size = -8}); }), HasSubstr("found -8"));
  }
}

// The loss is weight x input, so that a batch's gradient is its input; an update takes the window's gradient from the
// weight.
class Slope {
 public:
  double step(double input, const AccumulationStep& window) {
    return training_step_with_accumulation(forward(), batch(input), optimizer_, window);
  }
  double standard_step(double input) { return training_step_standard(forward(), batch(input), optimizer_); }
  double weight() const { return weight_.item<double>(); }
  at::Tensor gradient() const { return weight_.grad(); }

 private:
  static TensorBatch batch(double input) { return TensorBatch{{"input", at::full({1}, input)}}; }
  Forward forward() const {
    return [this](const TensorBatch& given) -> Output { return {weight_.mul(given["input"]).sum(), {}}; };
  }
  static OptimizerOptions plain_descent() {
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.lr = 1;
    options.momentum = 0;
    options.weight_decay = 0;
    return options;
  }

  at::Tensor weight_ = at::full({1}, 10.0).requires_grad_();
  Optimizer optimizer_{{{"weight", weight_}}, plain_descent()};
};

TEST(TrainingStep, OfTheStandardKindReleasesOldGradientsAndUpdatesAtOnce) {
  Slope model;
  EXPECT_EQ(model.standard_step(2), 20);
  EXPECT_EQ(model.weight(), 8);
  model.step(3, {.accumulation_steps = 2, .step = 0});  // Leaves a gradient behind.
  EXPECT_EQ(model.standard_step(1), 8);
  EXPECT_EQ(model.weight(), 7);
}

TEST(GradientAccumulation, UpdatesAtTheEndOfEachWindowAndReturnsTheDividedLoss) {
  Slope model;
  std::vector<double> losses, weights;
  for (std::int64_t step = 0; step < 8; ++step) {
    losses.push_back(model.step(static_cast<double>(step + 1), {.accumulation_steps = 4, .step = step}));
    weights.push_back(model.weight());
    EXPECT_EQ(model.gradient().defined(), step % 4 != 3) << step;
  }
  EXPECT_THAT(losses, ElementsAre(2.5, 5, 7.5, 10, 9.375, 11.25, 13.125, 15));
  EXPECT_THAT(weights, ElementsAre(10, 10, 10, 7.5, 7.5, 7.5, 7.5, 1));
}

TEST(GradientAccumulation, TenBatchesByFourMakeThreeUpdatesTheLastTheMeanOfTwo) {
  Slope model;
  std::vector<double> updates;
  for (std::int64_t step = 0; step < 10; ++step) {
    const double before = model.weight();
    model.step(static_cast<double>(step + 1), {.accumulation_steps = 4, .step = step, .last_of_window = step == 9});
    if (model.weight() != before) updates.push_back(before - model.weight());
  }
  EXPECT_THAT(updates, ElementsAre(2.5, 6.5, 9.5));
  EXPECT_FALSE(model.gradient().defined());
}

TEST(GradientAccumulation, TheLastOfAWholeWindowIsNotScaledOnceMore) {
  Slope model;
  for (std::int64_t step = 0; step < 4; ++step) {
    model.step(static_cast<double>(step + 1), {.accumulation_steps = 4, .step = step, .last_of_window = step == 3});
  }
  EXPECT_EQ(model.weight(), 7.5);
}

TEST(GradientAccumulation, RefusesAWindowOfNoBatchAndAStepBelow0) {
  Slope model;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { model.step(1, {.accumulation_steps = 0}); }),
              HasSubstr("found 0 and 0"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { model.step(1, {.accumulation_steps = 4, .step = -1}); }),
              HasSubstr("found 4 and -1"));
  EXPECT_FALSE(model.gradient().defined());
}

// Over all windows that can be drawn from three samples, so that the variance is the exact one.
TEST(GradientAccumulation, VarianceOfGradientsFallsAsOneByTheBatchesInAWindow) {
  constexpr double kSamples[] = {1, 4, 7};  // Mean 4, variance 6.
  std::int64_t windows = 1;
  for (std::int64_t batches = 1; batches <= 4; ++batches) {
    windows *= 3;
    double variance = 0;
    for (std::int64_t window = 0; window < windows; ++window) {
      Slope model;
      const double before = model.weight();
      for (std::int64_t step = 0, drawn = window; step < batches; ++step, drawn /= 3) {
        model.step(kSamples[drawn % 3], {.accumulation_steps = batches, .step = step});
      }
      variance += std::pow(before - model.weight() - 4, 2) / static_cast<double>(windows);
    }
    EXPECT_NEAR(variance, 6.0 / static_cast<double>(batches), 1e-4) << batches;
  }
}

}  // namespace
}  // namespace headrace::facade
