#include "insight/compare/metric_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

TEST(MetricRule, TheNameTellsWhichWayIsWorse) {
  for (const char* name :
       {"samples_per_s", "batches_per_second", "accuracy", "val_accuracy", "hit_rate", "cache.hit_rate"}) {
    EXPECT_EQ(rule_of(name, {}).better, Better::higher) << name;
  }
  for (const char* name : {"step_p50_s", "peak_memory_bytes", "loss", "overhead"}) {
    EXPECT_EQ(rule_of(name, {}).better, Better::lower) << name;
  }
}

TEST(MetricRule, SharesAreComparedByDifferencesAndTheRestByRatios) {
  EXPECT_TRUE(rule_of("val_accuracy", {}).is_absolute);
  EXPECT_EQ(rule_of("val_accuracy", {}).tolerance, 0.005);
  EXPECT_FALSE(rule_of("samples_per_s", {}).is_absolute);
  EXPECT_EQ(rule_of("samples_per_s", {}).tolerance, 0.02);
}

TEST(MetricRule, WhatIsSaidOfAMetricGoesBeforeItsName) {
  const MetricChoices choices{
      .only = {}, .higher_is_better = {"reward"}, .absolute = {"reward"}, .tolerances = {{"reward", 3}, {"loss", 0.1}}};
  EXPECT_EQ(rule_of("reward", choices).better, Better::higher);
  EXPECT_TRUE(rule_of("reward", choices).is_absolute);
  EXPECT_EQ(rule_of("reward", choices).tolerance, 3);
  EXPECT_EQ(rule_of("loss", choices).tolerance, 0.1);
  EXPECT_EQ(rule_of("loss", choices).better, Better::lower);
}

TEST(MetricRule, AnEffectAboveZeroIsWorseWhateverTheMetric) {
  EXPECT_NEAR(effect_of(rule_of("step_p50_s", {}), 1, 1.1), std::log(1.1), 1e-12);
  EXPECT_NEAR(effect_of(rule_of("samples_per_s", {}), 1.1, 1), std::log(1.1), 1e-12);
  EXPECT_NEAR(effect_of(rule_of("accuracy", {}), 0.9, 0.88), 0.02, 1e-12);
  EXPECT_EQ(effect_of(rule_of("loss", {}), 0, 0), 0);
}

TEST(MetricRule, AChangeHasTheSignOfTheMetric) {
  EXPECT_NEAR(change_of(rule_of("samples_per_s", {}), std::log(1.25)), -0.2, 1e-12);
  EXPECT_NEAR(change_of(rule_of("step_p50_s", {}), std::log(1.25)), 0.25, 1e-12);
  EXPECT_NEAR(change_of(rule_of("accuracy", {}), 0.02), -0.02, 1e-12);
}

TEST(MetricRule, NumbersThatHaveNoRatioAreNamed) {
  const auto refusal = [](double old_value, double new_value) {
    return error_of(ErrorCode::invalid_argument, [&] { effect_of(rule_of("errors", {}), old_value, new_value); });
  };
  EXPECT_THAT(refusal(0, 3), HasSubstr("errors is 0 of OLD and 3 of NEW"));
  EXPECT_THAT(refusal(0, 3), HasSubstr("--absolute errors"));
  EXPECT_THAT(refusal(-1, 3), HasSubstr("-1"));
  EXPECT_THAT(refusal(1, std::numeric_limits<double>::quiet_NaN()), HasSubstr("wanted finite numbers"));
}

TEST(MetricRule, ATolerancesRangeIsHeldByName) {
  const auto refusal = [](const char* name, double tolerance) {
    return error_of(ErrorCode::invalid_argument, [&] {
      check_choices({.only = {}, .higher_is_better = {}, .absolute = {}, .tolerances = {{name, tolerance}}});
    });
  };
  EXPECT_THAT(refusal("loss", 0), HasSubstr("the tolerance of loss must be above 0"));
  EXPECT_THAT(refusal("loss", 1), HasSubstr("below 1"));
  EXPECT_THAT(refusal("accuracy", -0.1), HasSubstr("accuracy"));
  check_choices({.only = {}, .higher_is_better = {}, .absolute = {"reward"}, .tolerances = {{"reward", 5}}});
}

}  // namespace
}  // namespace headrace
