#include "insight/tune/numeric_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "insight/tune/fake_job.h"

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

// A job with a float64 form, whose own float32 results are off by these shares.
class ExactCheck : public testing::Test {
 protected:
  NumericResult check(const Effect& effect, double own_loss_error = 0, double own_gradient_error = 0,
                      double seconds_max = 100) {
    job_ = std::make_unique<FakeJob>(Machine{}, std::map<std::string, Effect>{{"knob", effect}}, 1);
    job_->has_exact = has_exact_;
    job_->exact_throws = exact_throws_;
    job_->exact_cost = exact_cost_;
    job_->own_loss_error = own_loss_error;
    job_->own_gradient_error = own_gradient_error;
    NumericCheck check(*job_, 1, [] { return true; },
                       {[this] { return job_->now_s(); }, [seconds_max] { return seconds_max; }});
    EXPECT_TRUE(check.prepare(NumericClass::rounding, {}));
    const auto result = check.check(NumericClass::rounding, {{"knob", "true"}});
    EXPECT_TRUE(result.has_value());
    return *result;
  }
  bool has_exact_ = true, exact_throws_ = false;
  double exact_cost_ = 2;
  std::unique_ptr<FakeJob> job_;
};

TEST_F(ExactCheck, AChangeMayBeFourTimesAsFarFromFloat64AsTheJobItself) {
  EXPECT_TRUE(check({.loss_error = 2.9e-4}, 1e-4).passed);
  const auto beyond = check({.loss_error = 3.1e-4}, 1e-4);
  EXPECT_FALSE(beyond.passed);
  EXPECT_EQ(beyond.measure, "loss, error against float64");
  EXPECT_NEAR(beyond.value, 4.1e-4, 1e-6);
  EXPECT_NEAR(beyond.tolerance, 4e-4, 1e-6);
  EXPECT_NEAR(beyond.baseline_error.value(), 1e-4, 1e-6);
  EXPECT_TRUE(check({.gradient_error = 0.014}, 0, 5e-3).passed);
  EXPECT_FALSE(check({.gradient_error = 0.017}, 0, 5e-3).passed);
}

// Plain sums in one layout against better ones in the other: 2.4e-5 was seen.
TEST_F(ExactCheck, AJobThatIsRightByLuckDoesNotRefuseWhatOnePlainSumLoses) {
  EXPECT_TRUE(check({.loss_error = 2.4e-5}, 0).passed);
  EXPECT_TRUE(check({.loss_error = -2.4e-5}, 1e-8).passed);
  EXPECT_FALSE(check({.loss_error = 1e-4}, 0).passed);
  has_exact_ = false;
  EXPECT_FALSE(check({.loss_error = 2.4e-5}, 0).passed);
}

TEST_F(ExactCheck, GradientsFivePercentOffAreRefusedHoweverFarTheJobIsFromFloat64) {
  for (const double own : {0.0, 1e-5, 1e-3, 9e-3}) {
    const auto result = check({.gradient_error = 0.05}, 0, own);
    EXPECT_FALSE(result.passed) << own;
    EXPECT_TRUE(result.baseline_error) << own;
  }
  const auto fallen_back = check({.gradient_error = 0.05}, 0, 0.02);
  EXPECT_FALSE(fallen_back.passed);
  EXPECT_FALSE(fallen_back.baseline_error);
  EXPECT_THAT(fallen_back.why_not_float64, HasSubstr("itself 0.02 away from float64"));
}

TEST_F(ExactCheck, TheUpdateIsJudgedAsBefore) {
  const auto result = check({.update_error = 1e-5});
  EXPECT_FALSE(result.passed);
  EXPECT_THAT(result.measure, HasSubstr("update"));
  EXPECT_FALSE(result.baseline_error);
}

TEST_F(ExactCheck, WithoutAFloat64FormTheFixedFiguresServeAndTheReasonIsTold) {
  has_exact_ = false;
  const auto none = check({.gradient_error = 0.001});
  EXPECT_TRUE(none.passed);
  EXPECT_EQ(none.why_not_float64, "the fake has no float64 form");
  EXPECT_THAT(none.measure, testing::Not(HasSubstr("float64")));
  has_exact_ = exact_throws_ = true;
  EXPECT_EQ(check({}).why_not_float64, "fake: no kernel for double");
}

TEST_F(ExactCheck, AFloat64RunThatTakesTooLongIsNotBegunOrEndedAfterItsFirstBatch) {
  const auto estimated = check({}, 0, 0, 0.7);  // 5 batches, 4 steps each, of 0.04 s.
  EXPECT_EQ(job_->exact_batches, 0);
  EXPECT_THAT(estimated.why_not_float64, HasSubstr("estimated to take 0.8 s, and 0.7 s are given"));
  exact_cost_ = 10;
  const auto measured = check({}, 0, 0, 0.9);
  EXPECT_EQ(job_->exact_batches, 1);
  EXPECT_THAT(measured.why_not_float64, HasSubstr("1 of 5 batches in float64 took 0.4 s, and 0.9 s are given"));
  EXPECT_TRUE(measured.passed);
}

TEST_F(ExactCheck, TheFloat64RunIsMadeOnce) {
  check({});
  EXPECT_EQ(job_->exact_batches, kRoundingBatches);
  FakeJob& job = *job_;
  NumericCheck check(job, 1, [] { return true; }, {[&job] { return job.now_s(); }, [] { return 100.0; }});
  job.exact_batches = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(check.prepare(NumericClass::rounding, {{"knob", "true"}}));
    ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  }
  EXPECT_EQ(job.exact_batches, kRoundingBatches);
}

}  // namespace
}  // namespace headrace
