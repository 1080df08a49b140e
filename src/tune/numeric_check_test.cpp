#include "tune/numeric_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tune/fake_job.h"

namespace headrace {
namespace {

using testing::HasSubstr;

// Two tensors: one holds nearly all of the gradient, one a share of it that a test chooses.
Fingerprint print(double loss, std::vector<float> weight, std::vector<float> bias) {
  return {loss, {{"weight", std::move(weight)}, {"bias", std::move(bias)}}};
}

const std::vector<Fingerprint> kReference = {print(2, {3, 4}, {0.5f, 0})};

NumericResult rounding(const Fingerprint& candidate, double update = 0) {
  const std::vector<Fingerprint> candidates = {candidate};
  return compare_rounding(kReference, candidates, update);
}

TEST(NumericCheck, EqualFingerprintsPassWithZero) {
  const auto result = rounding(kReference.front());
  EXPECT_TRUE(result.checked);
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(result.value, 0);
}

TEST(NumericCheck, LossMayDifferByOneInAHundredThousand) {
  EXPECT_TRUE(rounding(print(2 * (1 + 0.9e-5), {3, 4}, {0.5f, 0})).passed);
  const auto result = rounding(print(2 * (1 + 1.1e-5), {3, 4}, {0.5f, 0}));
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.measure, "loss, relative");
  EXPECT_NEAR(result.value, 1.1e-5, 1e-9);
}

TEST(NumericCheck, GradientsTogetherMayDifferByOnePercent) {
  EXPECT_TRUE(rounding(print(2, {3.027f, 4.036f}, {0.5f, 0})).passed);
  const auto result = rounding(print(2, {3.033f, 4.044f}, {0.5f, 0}));
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.measure, "gradients, relative L2");
  EXPECT_NEAR(result.value, 0.011, 1e-3);
}

TEST(NumericCheck, ATensorThatHoldsAThousandthMayDifferByATenth) {
  const std::vector<Fingerprint> reference = {print(2, {3, 4}, {0.006f, 0})};
  const std::vector<Fingerprint> near = {print(2, {3, 4}, {0.0065f, 0})}, far = {print(2, {3, 4}, {0.007f, 0})};
  EXPECT_TRUE(compare_rounding(reference, near, 0).passed);
  const auto result = compare_rounding(reference, far, 0);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.measure, "gradient of bias, relative L2");
}

TEST(NumericCheck, ATensorOfRoundingNoiseMayBeAnything) {
  const std::vector<Fingerprint> reference = {print(2, {3, 4}, {0.004f, 0})};
  const std::vector<Fingerprint> other = {print(2, {3, 4}, {-0.004f, 0.001f})};
  EXPECT_TRUE(compare_rounding(reference, other, 0).passed);
}

TEST(NumericCheck, UpdateMayDifferByOneInAMillion) {
  EXPECT_TRUE(rounding(kReference.front(), 0.9e-6).passed);
  const auto result = rounding(kReference.front(), 1.1e-6);
  EXPECT_FALSE(result.passed);
  EXPECT_THAT(result.measure, HasSubstr("update"));
}

TEST(NumericCheck, WhatIsNotANumberNeverPasses) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto nan_f = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(rounding(print(nan, {3, 4}, {0.5f, 0})).passed);
  EXPECT_FALSE(rounding(print(2, {nan_f, 4}, {0.5f, 0})).passed);
  EXPECT_FALSE(rounding(kReference.front(), nan).passed);
  const std::vector<Fingerprint> broken = {print(2, {nan_f, 4}, {0.5f, 0})}, infinite = {print(nan, {3, 4}, {0.5f, 0})};
  EXPECT_FALSE(compare_direction(kReference, broken).passed);
  EXPECT_FALSE(compare_direction(kReference, infinite).passed);
  const std::vector<double> reference = {0.5, 0.6, 0.7}, losses = {0.6, nan, 0.6};
  EXPECT_FALSE(compare_losses(reference, losses).passed);
}

TEST(NumericCheck, GradientsOfAnotherFormAreRefusedByName) {
  EXPECT_THAT(rounding({2, {{"weight", {3, 4}}}}).measure, HasSubstr("1 tensors where 2"));
  EXPECT_THAT(rounding({2, {{"weight", {3, 4}}, {"gain", {0.5f, 0}}}}).measure, HasSubstr("gain where bias"));
  EXPECT_THAT(rounding(print(2, {3}, {0.5f, 0})).measure, HasSubstr("weight, 1 values where 2"));
}

TEST(NumericCheck, AGradientOfZerosMustStayZero) {
  const std::vector<Fingerprint> zeros = {print(2, {0, 0}, {0, 0})}, some = {print(2, {0, 1e-6f}, {0, 0})};
  EXPECT_TRUE(compare_rounding(zeros, zeros, 0).passed);
  EXPECT_FALSE(compare_rounding(zeros, some, 0).passed);
  EXPECT_TRUE(compare_direction(zeros, zeros).passed);
  EXPECT_FALSE(compare_direction(zeros, some).passed);
}

TEST(NumericCheck, DirectionPassesFromAMeanCosineOfNineTenths) {
  const auto turned = [](double cosine) {
    return print(2, {static_cast<float>(cosine), static_cast<float>(std::sqrt(1 - cosine * cosine))}, {});
  };
  const std::vector<Fingerprint> reference = {turned(1), turned(1)};
  const std::vector<Fingerprint> near = {turned(0.83), turned(0.98)}, far = {turned(0.80), turned(0.98)};
  EXPECT_TRUE(compare_direction(reference, near).passed);
  const auto result = compare_direction(reference, far);
  EXPECT_FALSE(result.passed);
  EXPECT_NEAR(result.value, 0.11, 1e-6);
  EXPECT_NEAR(result.tolerance, 0.1, 1e-12);
}

TEST(NumericCheck, EveryShortRunMustEndInsideTheWidenedBand) {
  const std::vector<double> reference = {0.50, 0.54, 0.60};  // Widened by its width: 0.40 to 0.70.
  EXPECT_TRUE(compare_losses(reference, std::vector<double>{0.41, 0.55, 0.69}).passed);
  EXPECT_FALSE(compare_losses(reference, std::vector<double>{0.50, 0.55, 0.71}).passed);
  EXPECT_FALSE(compare_losses(reference, std::vector<double>{0.39, 0.55, 0.60}).passed);
  const std::vector<double> narrow = {0.5, 0.5, 0.5};  // Widened by 2 % of its middle.
  EXPECT_TRUE(compare_losses(narrow, std::vector<double>{0.509}).passed);
  EXPECT_FALSE(compare_losses(narrow, std::vector<double>{0.511}).passed);
}

TEST(NumericCheck, LastTenthIsAtLeastOneLoss) {
  EXPECT_EQ(mean_of_last_tenth(std::vector<double>{9, 9, 4}), 4);
  std::vector<double> losses(30, 9);
  losses[27] = 1, losses[28] = 2, losses[29] = 3;
  EXPECT_EQ(mean_of_last_tenth(losses), 2);
}

class NumericCheckOnJob : public testing::Test {
 protected:
  std::optional<NumericResult> check(NumericClass numeric_class, const Effect& effect) {
    job_ = std::make_unique<FakeJob>(Machine{}, std::map<std::string, Effect>{{"knob", effect}}, 1);
    NumericCheck check(*job_, 1, [] { return true; });
    if (!check.prepare(numeric_class, {})) return std::nullopt;
    return check.check(numeric_class, {{"knob", "true"}});
  }
  std::unique_ptr<FakeJob> job_;
};

TEST_F(NumericCheckOnJob, BitEqualComparesTheStateAfterFiveSteps) {
  EXPECT_TRUE(check(NumericClass::bit_equal, {})->passed);
  EXPECT_EQ(job_->position, 5);
  const auto result = check(NumericClass::bit_equal, {.other_bits = true});
  EXPECT_FALSE(result->passed);
  EXPECT_THAT(result->measure, testing::Not(HasSubstr("does not repeat")));
}

TEST_F(NumericCheckOnJob, AJobThatDoesNotRepeatItselfIsSaidToBeSo) {
  FakeJob job({}, {{"knob", {}}}, 1);
  job.repeats_itself = false;
  NumericCheck check(job, 1, [] { return true; });
  ASSERT_TRUE(check.prepare(NumericClass::bit_equal, {}));
  const auto result = check.check(NumericClass::bit_equal, {{"knob", "true"}});
  EXPECT_FALSE(result->passed);
  EXPECT_THAT(result->measure, HasSubstr("does not repeat"));
}

TEST_F(NumericCheckOnJob, RoundingRefusesGradientsFivePercentOff) {
  EXPECT_TRUE(check(NumericClass::rounding, {.gradient_error = 0.001})->passed);
  const auto result = check(NumericClass::rounding, {.gradient_error = 0.05});
  EXPECT_FALSE(result->passed);
  EXPECT_NEAR(result->value, 0.05, 0.005);
  EXPECT_FALSE(check(NumericClass::rounding, {.update_error = 1e-5})->passed);
}

TEST_F(NumericCheckOnJob, ReducedPrecisionAllowsWhatRoundingDoesNot) {
  EXPECT_TRUE(check(NumericClass::reduced_precision, {.gradient_error = 0.05})->passed);
  EXPECT_FALSE(check(NumericClass::reduced_precision, {.gradient_error = 0.8})->passed);
}

TEST_F(NumericCheckOnJob, TheReferenceIsMeasuredOnce) {
  FakeJob job({}, {{"knob", {}}}, 1);
  NumericCheck check(job, 1, [] { return true; });
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {}), 10);
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {}), 5);
  EXPECT_EQ(check.steps_needed(NumericClass::reduced_precision, {}), 11);
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {{"knob", "true"}}), 10);
  const auto configured = job.configured.size();
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  EXPECT_EQ(job.configured.size(), configured);
  ASSERT_TRUE(check.prepare_short_runs({}, 30));
  ASSERT_TRUE(check.prepare_short_runs({}, 50));
  EXPECT_EQ(job.short_runs, 3);
  EXPECT_EQ(check.short_run_steps(), 30);
  EXPECT_TRUE(check.check_losses({{"knob", "true"}})->passed);
  EXPECT_EQ(job.short_runs, 6);
}

TEST_F(NumericCheckOnJob, EndsEarlyWithoutAResult) {
  FakeJob job({}, {{"knob", {}}}, 1);
  int left = 7;
  NumericCheck check(job, 1, [&left] { return left-- > 0; });
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  EXPECT_FALSE(check.check(NumericClass::rounding, {{"knob", "true"}}));
}

}  // namespace
}  // namespace headrace
