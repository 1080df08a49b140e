// Schedules by numbers made by hand; tests/torch_parity_test.py compares them with PyTorch's own.

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/lr_scheduler.h>
#include <headrace/optimizer.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/base/error_of.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;

LrSchedulerOptions of(LrSchedulerName name) {
  LrSchedulerOptions schedule;
  schedule.name = name;
  return schedule;
}

// Learning rates of the first `count` steps.
std::vector<double> rates(const LrSchedulerOptions& schedule, double lr, std::int64_t count, const RunLength& run) {
  std::vector<double> found;
  for (std::int64_t step = 0; step < count; ++step) found.push_back(scheduled_lr(schedule, lr, step, run));
  return found;
}

TEST(LrScheduler, WarmsUpAndFollowsTheCosineToItsEnd) {
  LrSchedulerOptions schedule = of(LrSchedulerName::CosineAnnealingLR);
  schedule.warmup_steps = 4;
  schedule.eta_min = 0.2;
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 0, {25, 1}), 0.5);
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 3, {25, 1}), 2.0);
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 4, {25, 1}), 2.0);
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 14, {25, 1}), 0.2 + (2.0 - 0.2) * 0.5) << "half way";
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 24, {25, 1}), 0.2);
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 99, {25, 1}), 0.2) << "beyond the end";
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 2.0, 4, {5, 1}), 2.0) << "one step after the warm-up";
}

TEST(LrScheduler, ACosineWithALengthOfItsOwnMovesByEpochsAndRisesAgain) {
  LrSchedulerOptions schedule = of(LrSchedulerName::CosineAnnealingLR);
  schedule.T_max = 2;
  EXPECT_THAT(rates(schedule, 2, 10, {10, 5}), Pointwise(DoubleEq(), {2., 2., 1., 1., 0., 0., 1., 1., 2., 2.}));
  schedule.interval = SchedulerInterval::step;
  EXPECT_THAT(rates(schedule, 2, 5, {10, 5}), Pointwise(DoubleEq(), {2., 1., 0., 1., 2.}));
}

TEST(LrScheduler, ACosineOverTheWholeRunMayMoveByEpochs) {
  LrSchedulerOptions schedule = of(LrSchedulerName::CosineAnnealingLR);
  schedule.interval = SchedulerInterval::epoch;
  EXPECT_THAT(rates(schedule, 2, 6, {6, 3}), Pointwise(DoubleEq(), {2., 2., 1., 1., 0., 0.}));
}

TEST(LrScheduler, StepFallsEverySoManyWholeEpochs) {
  LrSchedulerOptions schedule = of(LrSchedulerName::StepLR);
  schedule.step_size = 2;
  schedule.gamma = 0.5;
  const RunLength run{50, 5};  // 10 steps an epoch.
  const double wanted[] = {8, 8, 4, 4, 2};
  for (std::int64_t step = 0; step < 50; ++step) EXPECT_EQ(scheduled_lr(schedule, 8, step, run), wanted[step / 10]);
  EXPECT_EQ(scheduled_lr(schedule, 8, 60, run), 1) << "beyond the end it goes on";
  schedule.warmup_steps = 25;
  EXPECT_EQ(scheduled_lr(schedule, 8, 24, run), 8) << "warm-up leads to the whole learning rate";
  EXPECT_EQ(scheduled_lr(schedule, 8, 25, run), 4) << "epochs count from the run's beginning";
  schedule.interval = SchedulerInterval::step;
  EXPECT_EQ(scheduled_lr(schedule, 8, 26, run), 8) << "optimizer steps count from the end of the warm-up";
  EXPECT_EQ(scheduled_lr(schedule, 8, 27, run), 4);
}

TEST(LrScheduler, MultiStepFallsAtItsMilestones) {
  LrSchedulerOptions schedule = of(LrSchedulerName::MultiStepLR);
  schedule.milestones = {1, 4};
  schedule.gamma = 0.25;
  const RunLength run{18, 6};
  const double wanted[] = {16, 4, 4, 4, 1, 1};
  for (std::int64_t step = 0; step < 18; ++step) EXPECT_EQ(scheduled_lr(schedule, 16, step, run), wanted[step / 3]);
}

TEST(LrScheduler, NoneStaysAfterTheWarmUp) {
  LrSchedulerOptions schedule;
  EXPECT_EQ(scheduled_lr(schedule, 3.0, 0, {10, 1}), 3.0);
  schedule.warmup_steps = 2;
  EXPECT_EQ(scheduled_lr(schedule, 3.0, 0, {10, 1}), 1.5);
  EXPECT_EQ(scheduled_lr(schedule, 3.0, 9, {10, 1}), 3.0);
}

TEST(LrScheduler, OneCycleIsTheWholeRunAfterTheWarmUp) {
  LrSchedulerOptions schedule = of(LrSchedulerName::OneCycleLR);
  schedule.anneal_strategy = AnnealStrategy::linear;
  schedule.pct_start = 0.5;
  schedule.div_factor = 4;
  schedule.final_div_factor = 2;
  schedule.warmup_steps = 1;
  EXPECT_THAT(rates(schedule, 8, 9, {7, 1}), Pointwise(DoubleEq(), {8., 2., 5., 8., 17. / 3, 10. / 3, 1., 1., 1.}));
  EXPECT_THAT(scheduled_momentum(schedule, 0, {7, 1}), testing::Optional(0.95)) << "the warm-up has the cycle's first";
  EXPECT_THAT(scheduled_momentum(schedule, 3, {7, 1}), testing::Optional(DoubleEq(0.85))) << "the peak";
  schedule.cycle_momentum = false;
  EXPECT_EQ(scheduled_momentum(schedule, 3, {7, 1}), std::nullopt);
  schedule = of(LrSchedulerName::OneCycleLR);
  EXPECT_EQ(scheduled_lr(schedule, 8, 0, {1, 1}), 8 / 25. / 1e4) << "a run of one step";
}

TEST(LrScheduler, ASequenceGivesEachScheduleItsOwnStepsAndLength) {
  LrSchedulerOptions schedule = of(LrSchedulerName::SequentialLR);
  schedule.interval = SchedulerInterval::step;
  schedule.milestones = {2, 5};
  schedule.schedulers = {{.name = LrSchedulerName::ConstantLR, .factor = 0.5},
                         {.name = LrSchedulerName::CosineAnnealingLR},
                         {.name = LrSchedulerName::ExponentialLR, .gamma = 0.5}};
  EXPECT_THAT(rates(schedule, 8, 8, {8, 1}), Pointwise(DoubleEq(), {4., 4., 8., 4., 0., 8., 4., 2.}));
  EXPECT_EQ(scheduled_momentum(schedule, 3, {8, 1}), std::nullopt);
  schedule.schedulers[1] = {.name = LrSchedulerName::CyclicLR};
  EXPECT_THAT(scheduled_momentum(schedule, 2, {8, 1}), testing::Optional(0.9)) << "where its turn is";
  EXPECT_THAT(scheduled_momentum(schedule, 1, {8, 1}), testing::Optional(0.9)) << "and before it";
}

TEST(LrScheduler, AChainMultipliesWhatItsSchedulesMakeOfTheRate) {
  LrSchedulerOptions schedule = of(LrSchedulerName::ChainedScheduler);
  schedule.interval = SchedulerInterval::step;
  schedule.schedulers = {{.name = LrSchedulerName::ConstantLR, .factor = 0.5, .total_iters = 2},
                         {.name = LrSchedulerName::StepLR, .step_size = 3, .gamma = 0.25},
                         {.name = LrSchedulerName::CosineAnnealingLR}};
  EXPECT_THAT(rates(schedule, 8, 5, {5, 1}),
              Pointwise(DoubleNear(1e-14), {4., 2 * (1 + std::sqrt(0.5)), 4., 1 - std::sqrt(0.5), 0.}));
  EXPECT_EQ(scheduled_momentum(schedule, 3, {5, 1}), std::nullopt);
}

// Momenta of the first `count` steps; -1 where none is set.
std::vector<double> momenta(const LrSchedulerOptions& schedule, std::int64_t count, const RunLength& run) {
  std::vector<double> found;
  for (std::int64_t step = 0; step < count; ++step) {
    found.push_back(scheduled_momentum(schedule, step, run).value_or(-1));
  }
  return found;
}

TEST(LrScheduler, BesideACycleOfASequenceMomentumStays) {
  LrSchedulerOptions schedule = of(LrSchedulerName::SequentialLR);
  schedule.interval = SchedulerInterval::step;
  schedule.milestones = {2, 5};
  schedule.schedulers = {{.name = LrSchedulerName::LinearLR},
                         {.name = LrSchedulerName::CyclicLR, .step_size_up = 4},
                         {.name = LrSchedulerName::ExponentialLR, .gamma = 0.5}};
  EXPECT_THAT(momenta(schedule, 8, {8, 1}), Pointwise(DoubleEq(), {0.9, 0.9, 0.9, 0.875, 0.85, 0.85, 0.85, 0.85}));
  schedule.milestones = {3, 5};
  schedule.schedulers = {{.name = LrSchedulerName::OneCycleLR},
                         {.name = LrSchedulerName::ConstantLR},
                         {.name = LrSchedulerName::CyclicLR, .max_momentum = 0.7}};
  EXPECT_THAT(momenta(schedule, 6, {6, 1}),
              ElementsAre(testing::_, testing::_, DoubleEq(0.95), DoubleEq(0.95), DoubleEq(0.95), DoubleEq(0.7)))
      << "of the one before";
  schedule.milestones = {1, 2, 3};
  schedule.schedulers = {{.name = LrSchedulerName::LinearLR},
                         {.name = LrSchedulerName::CyclicLR, .max_momentum = 0.7},
                         {.name = LrSchedulerName::ConstantLR},
                         {.name = LrSchedulerName::OneCycleLR}};
  EXPECT_THAT(momenta(schedule, 3, {9, 1}), ElementsAre(DoubleEq(0.95), DoubleEq(0.7), DoubleEq(0.7)))
      << "of the last to come, as its constructor ran last";
}

TEST(LrScheduler, ATrainerMovesMomentumOrTheFirstOfBetas) {
  constexpr std::int64_t kSteps = 6;
  LrSchedulerOptions schedule = of(LrSchedulerName::OneCycleLR);
  schedule.pct_start = 0.5;
  for (const OptimizerName name :
       {OptimizerName::adamw, OptimizerName::adam, OptimizerName::sgd, OptimizerName::rmsprop}) {
    at::manual_seed(1);
    tiny::Cnn network;
    OptimizerOptions options;
    options.name = name;
    options.momentum = 0;
    Trainer trainer(
        network.state(), Optimizer(network.state().parameters, options),
        [&network](const TensorBatch& batch) { return network(batch); }, {}, schedule, kSteps);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      trainer.step(tiny::random_batch(8));
      const OptimizerOptions& now = trainer.optimizer().options();
      const bool has_betas = name == OptimizerName::adamw || name == OptimizerName::adam;
      EXPECT_EQ(has_betas ? now.betas.at(0) : now.momentum, scheduled_momentum(schedule, step, {kSteps, 1}))
          << choice_name(name) << ", step " << step;
      EXPECT_EQ(now.betas.at(1), options.betas.at(1));
    }
  }
}

// Of parameters with which every schedule moves within 12 updates.
LrSchedulerOptions in_few_steps(LrSchedulerName name) {
  LrSchedulerOptions schedule = of(name);
  schedule.interval = SchedulerInterval::step;
  schedule.gamma = 0.5;
  schedule.milestones = {5};
  schedule.T_0 = 4;
  schedule.step_size_up = 3;
  schedule.schedulers = {{.name = LrSchedulerName::LinearLR}, {.name = LrSchedulerName::StepLR, .step_size = 2}};
  return schedule;
}

// A gradient of one and plain SGD: a parameter moves by its learning rate.
TEST(LrScheduler, EveryScheduleKeepsTheRatioOfTwoGroups) {
  constexpr std::int64_t kSteps = 12;
  for (const auto& [name, text] : choices(LrSchedulerName{})) {
    LrSchedulerOptions schedule = in_few_steps(name);
    schedule.eta_min = 0.125;
    PlateauState plateau;
    plateau.reductions = 1;
    const at::Tensor head = at::zeros({1}), backbone = at::zeros({1}), own_rate = at::zeros({1});
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.lr = 1;
    options.momentum = 0;
    options.weight_decay = 0;
    std::vector<ParameterGroup> groups(3);
    groups[0] = {.parameters = {{"head", head}}, .options = options};
    groups[1] = {.parameters = {{"backbone", backbone}}, .options = options, .lr_mult = 0.1};
    options.lr = 0.1;
    groups[2] = {.parameters = {{"own_rate", own_rate}}, .options = options};
    Optimizer optimizer{groups};
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (const at::Tensor& parameter : {head, backbone, own_rate}) {
        parameter.zero_();
        parameter.mutable_grad() = at::ones({1});
      }
      optimizer.step([&](double lr) { return scheduled_lr(schedule, lr, step, {kSteps, 1}, plateau); });
      const double rate = scheduled_lr(schedule, 1, step, {kSteps, 1}, plateau);
      EXPECT_FLOAT_EQ(-head.item<float>(), static_cast<float>(rate)) << text << ", step " << step;
      EXPECT_FLOAT_EQ(-backbone.item<float>(), static_cast<float>(rate * 0.1)) << text << ", step " << step;
      const double of_own = scheduled_lr(schedule, 0.1, step, {kSteps, 1}, plateau);
      EXPECT_FLOAT_EQ(-own_rate.item<float>(), static_cast<float>(of_own)) << text << ", step " << step;
    }
  }
}

TEST(LrScheduler, TwoRatesKeepTheirRatioWhereNoRateOfTheScheduleIsAbsolute) {
  constexpr std::int64_t kSteps = 12;
  PlateauState plateau;
  plateau.reductions = 2;
  for (const auto& [name, text] : choices(LrSchedulerName{})) {
    LrSchedulerOptions schedule = in_few_steps(name);
    schedule.warmup_steps = 2;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(scheduled_lr(schedule, 0.1, step, {kSteps, 1}, plateau),
                  0.1 * scheduled_lr(schedule, 1, step, {kSteps, 1}, plateau), 1e-15)
          << text << ", step " << step;
    }
  }
  LrSchedulerOptions schedule = of(LrSchedulerName::CosineAnnealingLR);
  schedule.eta_min = 0.01;
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 1, kSteps - 1, {kSteps, 1}), 0.01);
  EXPECT_DOUBLE_EQ(scheduled_lr(schedule, 0.1, kSteps - 1, {kSteps, 1}), 0.01) << "as in torch";
}

TEST(LrScheduler, RefusesWhatCannotBeComputed) {
  const auto refusal = [](const LrSchedulerOptions& schedule) {
    return error_of(ErrorCode::invalid_argument, [&] { scheduled_lr(schedule, 1, 0, {2, 1}); });
  };
  EXPECT_THAT(refusal(of(LrSchedulerName::ExponentialLR)), HasSubstr("ExponentialLR wants gamma, found none"));
  EXPECT_THAT(refusal(of(LrSchedulerName::CosineAnnealingWarmRestarts)), HasSubstr("wants T_0, found none"));
  LrSchedulerOptions schedule = of(LrSchedulerName::SequentialLR);
  EXPECT_THAT(refusal(schedule), HasSubstr("one scheduler more than milestones, found 0 and 0"));
  schedule.schedulers = {{.name = LrSchedulerName::ReduceLROnPlateau}};
  EXPECT_THAT(refusal(schedule), HasSubstr("ReduceLROnPlateau cannot be one of the schedulers of SequentialLR"));
  schedule.name = LrSchedulerName::ChainedScheduler;
  EXPECT_THAT(refusal(schedule), HasSubstr("ReduceLROnPlateau cannot be one of the schedulers of ChainedScheduler"));
  schedule.schedulers.clear();
  EXPECT_THAT(refusal(schedule), HasSubstr("ChainedScheduler wants schedulers, found none"));
}

// ---- ReduceLROnPlateau ----

// Reductions after each of the metrics.
std::vector<std::int64_t> reductions(const LrSchedulerOptions& schedule, const std::vector<double>& metrics) {
  PlateauState state;
  std::vector<std::int64_t> found;
  for (const double metric : metrics) found.push_back((state = after_metric(state, schedule, metric)).reductions);
  return found;
}

TEST(Plateau, ReducesAfterPatienceAndRestsForTheCooldown) {
  LrSchedulerOptions schedule = of(LrSchedulerName::ReduceLROnPlateau);
  schedule.patience = 1;
  EXPECT_THAT(reductions(schedule, {5, 4, 4, 4, 4, 4}), ElementsAre(0, 0, 0, 1, 1, 2));
  schedule.cooldown = 2;
  EXPECT_THAT(reductions(schedule, {5, 4, 4, 4, 4, 4, 4, 4}), ElementsAre(0, 0, 0, 1, 1, 1, 1, 2));
}

TEST(Plateau, KnowsWhatIsBetter) {
  LrSchedulerOptions schedule = of(LrSchedulerName::ReduceLROnPlateau);
  schedule.patience = 0;
  schedule.threshold = 0.5;
  EXPECT_THAT(reductions(schedule, {8, 5, 3}), ElementsAre(0, 1, 1)) << "less than half the best";
  schedule.threshold_mode = ThresholdMode::abs;
  EXPECT_THAT(reductions(schedule, {8, 7.6, 7.4}), ElementsAre(0, 1, 1));
  schedule.mode = SchedulerMode::max;
  EXPECT_THAT(reductions(schedule, {1, 1.4, 1.6}), ElementsAre(0, 1, 1));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(reductions(schedule, {nan, 1, nan}), ElementsAre(1, 1, 2)) << "no number is never better";
}

TEST(Plateau, MultipliesByFactorDownToMinLrAndKeepsTheRatioOfTwoRates) {
  LrSchedulerOptions schedule = of(LrSchedulerName::ReduceLROnPlateau);
  const auto lr_after = [&schedule](double lr, std::int64_t times) {
    PlateauState state;
    state.reductions = times;
    return scheduled_lr(schedule, lr, 7, {10, 2}, state);
  };
  EXPECT_DOUBLE_EQ(lr_after(1.0, 2), 0.01);
  EXPECT_DOUBLE_EQ(lr_after(0.1, 2) / lr_after(1.0, 2), 0.1);
  schedule.factor = 0.5;
  schedule.min_lr = 0.2;
  EXPECT_DOUBLE_EQ(lr_after(1.0, 2), 0.25);
  EXPECT_DOUBLE_EQ(lr_after(1.0, 3), 0.2);
  EXPECT_DOUBLE_EQ(lr_after(1.0, 1000), 0.2);
  schedule.eps = 0.06;
  EXPECT_DOUBLE_EQ(lr_after(1.0, 3), 0.25) << "a reduction by no more than eps is left out";
}

TEST(Plateau, HasTheStateOfTorchAfterEachMetric) {
  LrSchedulerOptions schedule = of(LrSchedulerName::ReduceLROnPlateau);
  schedule.patience = 2;
  schedule.cooldown = 1;
  struct Step {
    double metric;
    PlateauState wanted;
  };
  const Step steps[] = {
      {3, {.best = 3.0}},
      {2, {.best = 2.0}},
      {2, {.best = 2.0, .num_bad_epochs = 1}},
      {2, {.best = 2.0, .num_bad_epochs = 2}},
      {2, {.best = 2.0, .cooldown_counter = 1, .reductions = 1}},
      {2, {.best = 2.0, .reductions = 1}},
      {1.5, {.best = 1.5, .reductions = 1}},
      {2, {.best = 1.5, .num_bad_epochs = 1, .reductions = 1}},
      {2, {.best = 1.5, .num_bad_epochs = 2, .reductions = 1}},
      {2, {.best = 1.5, .cooldown_counter = 1, .reductions = 2}},
      {2, {.best = 1.5, .reductions = 2}},
  };
  PlateauState state;
  for (const auto& [metric, wanted] : steps) {
    state = after_metric(state, schedule, metric);
    EXPECT_EQ(state.best, wanted.best);
    EXPECT_EQ(state.num_bad_epochs, wanted.num_bad_epochs);
    EXPECT_EQ(state.cooldown_counter, wanted.cooldown_counter);
    EXPECT_EQ(state.reductions, wanted.reductions);
  }
}

// As torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.5, anneal_epochs=4) steps from a rate of 0.25, once an epoch.
TEST(SwaLr, AnnealsFromTheLastScheduledRateOnceAnEpoch) {
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::StepLR;
  schedule.step_size = 1;
  schedule.gamma = 0.5;  // By epoch: 1, 0.5, 0.25.
  TrainOptions options;
  options.swa_start = 3;
  options.swa_lr = 0.5;
  options.swa_anneal_epochs = 4;
  const RunLength run{20, 10};  // 2 steps an epoch.
  const auto rate = [&](std::int64_t step) { return swa_lr(options, schedule, 1.0, step, run); };
  EXPECT_EQ(rate(3), 0.5);
  EXPECT_EQ(rate(5), 0.25) << "epoch 3 is the schedule's, and the mean begins with its weights";
  const double cosine[] = {0.2866116523516816, 0.375, 0.46338834764831843, 0.5, 0.5, 0.5};
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    EXPECT_DOUBLE_EQ(rate(6 + 2 * epoch), cosine[epoch]) << epoch;
    EXPECT_DOUBLE_EQ(rate(7 + 2 * epoch), cosine[epoch]) << epoch;
  }
  options.swa_anneal_strategy = AnnealStrategy::linear;
  EXPECT_DOUBLE_EQ(rate(6), 0.3125);
  EXPECT_DOUBLE_EQ(rate(10), 0.4375);
  options.swa_anneal_epochs = 0;
  EXPECT_DOUBLE_EQ(rate(6), 0.5) << "at once";
  options.swa_lr = 0;
  EXPECT_EQ(rate(6), 0.125) << "the schedule goes on";
}

}  // namespace
}  // namespace headrace
