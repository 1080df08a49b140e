// What of a schedule is refused before it computes anything; src/app/recipe/recipe_test.cpp has it by its TOML.
#include "core/options/schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <functional>
#include <limits>
#include <string>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// What is said of a schedule of that class after `change`.
std::string said(LrSchedulerName name, const std::function<void(LrSchedulerOptions&)>& change) {
  LrSchedulerOptions options;
  options.name = name;
  change(options);
  return error_of(ErrorCode::invalid_argument, [&] { check_lr_scheduler(options); });
}

TEST(CheckLrScheduler, NamesTheKeyOfANumberOutsideItsRange) {
  using enum LrSchedulerName;
  EXPECT_EQ(said(StepLR, [](auto& o) { o.step_size = 0; }),
            "train: lr_scheduler.step_size must be 1 to 100000000, found 0");
  EXPECT_THAT(said(CosineAnnealingWarmRestarts,
                   [](auto& o) {
                     o.T_0 = 3;
                     o.T_mult = 0;
                   }),
              StartsWith("train: lr_scheduler.T_mult must be 1 to 1000, found 0"));
  EXPECT_THAT(said(LinearLR, [](auto& o) { o.total_iters = 0; }), HasSubstr("lr_scheduler.total_iters must be 1 to"));
  EXPECT_THAT(said(ExponentialLR, [](auto& o) { o.gamma = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("lr_scheduler.gamma must be"));
  EXPECT_THAT(said(MultiStepLR, [](auto& o) { o.milestones = {0}; }), HasSubstr("lr_scheduler.milestones must be"));
  EXPECT_THAT(said(none, [](auto& o) { o.warmup_steps = -1; }), HasSubstr("lr_scheduler.warmup_steps must be"));
  EXPECT_THAT(said(SequentialLR, [](auto& o) { o.schedulers = {{.name = StepLR, .step_size = 0}}; }),
              HasSubstr("lr_scheduler.schedulers[0].step_size must be"));
}

TEST(CheckLrScheduler, TellsWhatContradictsItself) {
  using enum LrSchedulerName;
  EXPECT_THAT(said(StepLR, [](auto& o) { o.power = 2; }),
              StartsWith("train: lr_scheduler.power has no effect with lr_scheduler.name = \"StepLR\""));
  EXPECT_EQ(said(MultiStepLR,
                 [](auto& o) {
                   o.milestones = {30, 10};
                 }),
            "train: lr_scheduler.milestones has 10 after 30; wanted numbers that rise");
  EXPECT_THAT(said(ExponentialLR, [](auto&) {}), HasSubstr("lr_scheduler.gamma is missing"));
  EXPECT_THAT(said(SequentialLR, [](auto& o) { o.schedulers = {{.name = StepLR, .power = 2}}; }),
              HasSubstr("lr_scheduler.schedulers[0].power has no effect"));
}

TEST(CheckLrScheduler, ACycleHasItsLowestValueFirst) {
  using enum LrSchedulerName;
  EXPECT_EQ(said(CyclicLR,
                 [](auto& o) {
                   o.base_lr = 0.1;
                   o.max_lr = 0.01;
                 }),
            "train: lr_scheduler.base_lr is 0.1 and lr_scheduler.max_lr is 0.01; wanted the lower one first");
  EXPECT_EQ(
      said(OneCycleLR,
           [](auto& o) {
             o.base_momentum = 0.95;
             o.max_momentum = 0.85;
           }),
      "train: lr_scheduler.base_momentum is 0.95 and lr_scheduler.max_momentum is 0.85; wanted the lower one first");
}

TEST(CheckLrScheduler, WhatACycleDoesNotUseIsIdle) {
  using enum LrSchedulerName;
  EXPECT_EQ(said(CyclicLR, [](auto& o) { o.gamma = 0.9; }),
            "train: lr_scheduler.gamma has no effect with lr_scheduler.mode = \"auto\"; wanted 0.0, or \"exp_range\"");
  EXPECT_EQ(said(OneCycleLR,
                 [](auto& o) {
                   o.cycle_momentum = false;
                   o.max_momentum = 0.9;
                 }),
            "train: lr_scheduler.max_momentum has no effect with lr_scheduler.cycle_momentum = false; wanted 0.0, or "
            "true");
}

TEST(CheckLrScheduler, ASequenceThatHoldsACycleSaysWhatItsMilestonesCount) {
  LrSchedulerOptions options;
  options.name = LrSchedulerName::SequentialLR;
  options.milestones = {5};
  options.schedulers = {{.name = LrSchedulerName::LinearLR}, {.name = LrSchedulerName::OneCycleLR}};
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { check_lr_scheduler(options); }),
      EndsWith("lr_scheduler.interval is \"auto\" and lr_scheduler.schedulers[1].name is \"OneCycleLR\"; wanted "
               "\"step\" or \"epoch\", which the milestones count"));
  for (const SchedulerInterval interval : {SchedulerInterval::step, SchedulerInterval::epoch}) {
    options.interval = interval;
    EXPECT_NO_THROW(check_lr_scheduler(options));
  }
}

TEST(CheckLrScheduler, LetsPassWhatEachClassHasByDefault) {
  for (const auto& [name, text] : choices(LrSchedulerName{})) {
    LrSchedulerOptions options;
    options.name = name;
    if (name == LrSchedulerName::ExponentialLR) options.gamma = 0.9;
    if (name == LrSchedulerName::CosineAnnealingWarmRestarts) options.T_0 = 10;
    if (name == LrSchedulerName::MultiStepLR) options.milestones = {30, 60};
    if (name == LrSchedulerName::SequentialLR) {
      options.milestones = {5};
      options.schedulers = {{.name = LrSchedulerName::LinearLR}, {.name = LrSchedulerName::StepLR}};
    }
    EXPECT_NO_THROW(check_lr_scheduler(options)) << text;
  }
}

}  // namespace
}  // namespace headrace
