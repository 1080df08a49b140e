#include "insight/tune/numeric_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
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
  EXPECT_FALSE(compare_reduced_precision(kReference, broken).passed);
  EXPECT_FALSE(compare_reduced_precision(kReference, infinite).passed);
  EXPECT_FALSE(compare_reduced_precision(broken, kReference).passed);
  EXPECT_FALSE(judge_reduced_precision(nan, 1, true, 1).passed);
  EXPECT_FALSE(judge_reduced_precision(0, nan, true, 1).passed);
  EXPECT_FALSE(judge_reduced_precision(0, 1, true, nan).passed);
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
  EXPECT_TRUE(compare_reduced_precision(zeros, zeros).passed);
  EXPECT_FALSE(compare_reduced_precision(zeros, some).passed);
}

TEST(NumericCheck, ReducedPrecisionMayMoveGradientsByHalfOfWhatLiesBetweenTwoBatches) {
  EXPECT_TRUE(judge_reduced_precision(0.25, 0.969, true, 0.6).passed);  // bfloat16 on ResNet-18, batches of 8.
  const auto far = judge_reduced_precision(0.31, 0.969, true, 0.6);
  EXPECT_FALSE(far.passed);
  EXPECT_THAT(far.measure, HasSubstr("between two batches"));
  EXPECT_EQ(far.value, 0.31);
  EXPECT_EQ(far.tolerance, kCallDistanceFactor * 0.6);
  EXPECT_TRUE(judge_reduced_precision(0, 1, true, 0).passed);
  EXPECT_FALSE(judge_reduced_precision(1e-3, 1, true, 0).passed);
}

TEST(NumericCheck, BrokenGradientsOfReducedPrecisionAreRefused) {
  EXPECT_FALSE(judge_reduced_precision(1, 1, true, 1.4).passed);        // Twice as large.
  EXPECT_FALSE(judge_reduced_precision(1.4, 0, true, 1.4).passed);      // Of another batch.
  EXPECT_FALSE(judge_reduced_precision(0.5, 0.866, true, 1.4).passed);  // A layer with a quarter of the squares zeroed.
  const auto infinite = judge_reduced_precision(0, 1, false, 1.4);
  EXPECT_FALSE(infinite.passed);
  EXPECT_THAT(infinite.measure, HasSubstr("not finite"));
}

TEST(NumericCheck, ReducedPrecisionIsJudgedByTheBatchThatIsFarthestAndTheOneTurnedMost) {
  // Two batches whose gradients stand upright on each other: the root of 2 lies between them.
  const auto turned = [](double cosine, double length = 1) {
    return print(2, {static_cast<float>(length * cosine), static_cast<float>(length * std::sqrt(1 - cosine * cosine))},
                 {});
  };
  const Fingerprint other = print(2, {0, 1}, {});
  const std::vector<Fingerprint> reference = {turned(1), other};
  const auto compare = [&](const Fingerprint& first) {
    return compare_reduced_precision(reference, std::vector<Fingerprint>{first, other});
  };
  EXPECT_TRUE(compare(turned(1)).passed);
  EXPECT_TRUE(compare(turned(0.91)).passed);
  const auto away = compare(turned(0.89));
  EXPECT_FALSE(away.passed);
  EXPECT_NEAR(away.value, 0.11, 1e-6);
  EXPECT_NEAR(away.tolerance, 0.1, 1e-12);
  EXPECT_THAT(away.measure, HasSubstr("cosine"));
  EXPECT_TRUE(compare(turned(1, 1.7)).passed);
  const auto longer = compare(turned(1, 1.72));
  EXPECT_FALSE(longer.passed);
  EXPECT_NEAR(longer.value, 0.72, 1e-6);
  EXPECT_NEAR(longer.tolerance, std::sqrt(0.5), 1e-6);
}

TEST(NumericCheck, ABatchThatLeavesOutALayerDoesNotCountAmongTheDistancesBetweenBatches) {
  const Fingerprint short_one = {2, {{"weight", {3, 4}}}};
  const std::vector<Fingerprint> prints = {kReference.front(), short_one};
  EXPECT_TRUE(compare_reduced_precision(prints, prints).passed);
  EXPECT_THAT(compare_reduced_precision(kReference, std::vector<Fingerprint>{short_one}).measure,
              HasSubstr("1 tensors where 2"));
}

class NumericCheckOnJob : public testing::Test {
 protected:
  std::optional<NumericResult> check(NumericClass numeric_class, const Effect& effect) {
    job_ = std::make_unique<FakeJob>(Machine{}, std::map<std::string, Effect>{{"knob", effect}}, 1);
    NumericCheck check(*job_, [] { return true; });
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
  NumericCheck check(job, [] { return true; });
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
  NumericCheck check(job, [] { return true; });
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {}), 10);
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {}), 5);
  EXPECT_EQ(check.steps_needed(NumericClass::reduced_precision, {}), 5);
  EXPECT_EQ(check.steps_needed(NumericClass::rounding, {{"knob", "true"}}), 10);
  const auto configured = job.configured.size();
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  ASSERT_TRUE(check.prepare(NumericClass::reduced_precision, {}));
  EXPECT_EQ(job.configured.size(), configured);
}

TEST_F(NumericCheckOnJob, EndsEarlyWithoutAResult) {
  FakeJob job({}, {{"knob", {}}}, 1);
  int left = 7;
  NumericCheck check(job, [&left] { return left-- > 0; });
  ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  EXPECT_FALSE(check.check(NumericClass::rounding, {{"knob", "true"}}));
}

TEST_F(NumericCheckOnJob, BatchesAsWrittenAreLoadedOnce) {
  FakeJob job({}, {{"alike", {}}, {"draws", {.other_draws = true}}, {"wrong", {.batch_shift = 2}}}, 1);
  int left = 3;
  NumericCheck check(job, [&left] { return left-- > 0; });
  EXPECT_EQ(check.steps_needed_for_batches(), 12);
  EXPECT_FALSE(check.prepare_batches());
  EXPECT_EQ(check.steps_needed_for_batches(), 12);
  left = 100;
  job.batches_loaded = 0;
  ASSERT_TRUE(check.prepare_batches());
  ASSERT_TRUE(check.prepare_batches());
  EXPECT_EQ(job.batches_loaded, 8);
  EXPECT_EQ(check.steps_needed_for_batches(), 4);
  const auto alike = check.check_batches(NumericClass::reduced_precision, {{"alike", "true"}});
  EXPECT_EQ(job.batches_loaded, 12);
  EXPECT_EQ(job.settings, (Settings{{"alike", "true"}}));
  EXPECT_EQ(alike->value, 0);
  EXPECT_EQ(alike->numeric_class, NumericClass::reduced_precision);
  const auto draws = check.check_batches(NumericClass::rounding, {{"draws", "true"}});
  EXPECT_TRUE(draws->passed);
  EXPECT_NEAR(draws->value, 1, 0.2);
  EXPECT_EQ(draws->numeric_class, NumericClass::rounding);
  const auto wrong = check.check_batches(NumericClass::rounding, {{"wrong", "true"}});
  EXPECT_FALSE(wrong->passed);
  EXPECT_NEAR(wrong->value, std::sqrt(8), 0.5);  // Of the same draws, shifted.
  left = 2;
  EXPECT_FALSE(check.check_batches(NumericClass::rounding, {{"draws", "true"}}));
}

// A job that draws the gradient of each batch by these functions, as written and under any setting.
class DrawnJob : public FakeJob {
 public:
  using Draw = std::function<Fingerprint(std::mt19937_64&)>;
  DrawnJob(Draw as_written, Draw as_loaded, std::uint64_t seed)
      : FakeJob({}, {{"knob", {}}}, seed),
        as_written_(std::move(as_written)),
        as_loaded_(std::move(as_loaded)),
        draws_(seed) {}
  Fingerprint fingerprint_as_loaded(std::int64_t /*batch*/) override {
    return (settings.empty() ? as_written_ : as_loaded_)(draws_);
  }

 private:
  Draw as_written_, as_loaded_;
  std::mt19937_64 draws_;
};

constexpr int kSeeds = 200;

int passed_of_seeds(const DrawnJob::Draw& as_written, const DrawnJob::Draw& as_loaded) {
  int passed = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    DrawnJob job(as_written, as_loaded, 4000 + seed);
    NumericCheck check(job, [] { return true; });
    EXPECT_TRUE(check.prepare_batches());
    passed += check.check_batches(NumericClass::rounding, {{"knob", "true"}})->passed;
  }
  return passed;
}

DrawnJob::Draw gaussian(std::size_t values, double mean, double deviation = 1) {
  return [=](std::mt19937_64& random) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> drawn(values);
    for (float& value : drawn) value = static_cast<float>(normal(random));
    return Fingerprint{2, {{"weight", std::move(drawn)}}};
  };
}

TEST(BatchesCheck, BatchesOfTheSameDistributionPass) {
  EXPECT_EQ(passed_of_seeds(gaussian(1000, 0), gaussian(1000, 0)), kSeeds);
  EXPECT_EQ(passed_of_seeds(gaussian(1000, 3), gaussian(1000, 3)), kSeeds);
}

TEST(BatchesCheck, AMeanThatIsOffByAsMuchAsOneBatchsNoiseIsRefusedAndHalfOfThatIsNotSeen) {
  EXPECT_EQ(passed_of_seeds(gaussian(1000, 0), gaussian(1000, 1)), 0);
  EXPECT_EQ(passed_of_seeds(gaussian(1000, 0), gaussian(1000, 0.5)), kSeeds);
}

TEST(BatchesCheck, AScaleOfTwoHundredFiftyFiveIsRefused) {
  EXPECT_EQ(passed_of_seeds(gaussian(1000, 0), gaussian(1000, 0, 255)), 0);
}

// 17 % are refused; it would be 36 % with one way to divide the batches as written.
TEST(BatchesCheck, NoiseInASingleDirectionIsSeldomRefused) {
  EXPECT_GE(passed_of_seeds(gaussian(1, 0), gaussian(1, 0)), 145);
}

// The gradient of a softmax of 4 classes, on 64 samples whose 8 inputs lie around their class's axis. `told` says which
// label a sample has.
using Labels = std::function<std::size_t(std::size_t label, std::mt19937_64&)>;

DrawnJob::Draw softmax(Labels told, double scale = 1) {
  return [told = std::move(told), scale](std::mt19937_64& random) {
    constexpr std::size_t kClasses = 4, kInputs = 8, kSamples = 64;
    std::uniform_int_distribution<std::size_t> labels(0, kClasses - 1);
    std::normal_distribution<double> noise(0, 0.5);
    double loss = 0;
    std::vector<float> gradient(kClasses * kInputs);
    for (std::size_t sample = 0; sample < kSamples; ++sample) {
      const std::size_t label = labels(random), target = told(label, random);
      std::array<double, kInputs> inputs{};
      for (std::size_t i = 0; i < kInputs; ++i) inputs[i] = scale * (noise(random) + (i == label ? 2 : 0));
      std::array<double, kClasses> logits{};
      for (std::size_t k = 0; k < kClasses; ++k) {
        for (std::size_t i = 0; i < kInputs; ++i) {
          logits[k] += 0.05 * (static_cast<double>((k + 2 * i) % 3) - 1) * inputs[i];
        }
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - largest);
      loss += (std::log(sum) + largest - logits[target]) / kSamples;
      for (std::size_t k = 0; k < kClasses; ++k) {
        const double slope = (std::exp(logits[k] - largest) / sum - (k == target ? 1 : 0)) / kSamples;
        for (std::size_t i = 0; i < kInputs; ++i) {
          gradient[k * kInputs + i] += static_cast<float>(slope * inputs[i]);
        }
      }
    }
    return Fingerprint{loss, {{"weight", std::move(gradient)}}};
  };
}

TEST(BatchesCheck, WhatIsLearnedFromOtherLabelsOrPixelsIsRefused) {
  const Labels own = [](std::size_t label, std::mt19937_64&) { return label; };
  const Labels permuted = [](std::size_t label, std::mt19937_64&) { return (label + 1) % 4; };
  const Labels shuffled = [](std::size_t, std::mt19937_64& random) {
    return std::uniform_int_distribution<std::size_t>(0, 3)(random);
  };
  EXPECT_EQ(passed_of_seeds(softmax(own), softmax(permuted)), 0);
  EXPECT_EQ(passed_of_seeds(softmax(own), softmax(shuffled)), 0);
  EXPECT_EQ(passed_of_seeds(softmax(own), softmax(own, 255)), 0);
  EXPECT_GE(passed_of_seeds(softmax(own), softmax(own)), 170);  // About 186: its noise has few directions.
}

TEST(BatchesCheck, TheQuotientOfTheDistancesDecides) {
  const auto at = judge_batches(3, 2, true), beyond = judge_batches(3.02, 2, true);
  EXPECT_TRUE(at.checked && at.passed);
  EXPECT_EQ(at.value, 1.5);
  EXPECT_EQ(at.tolerance, kBatchesDistanceFactor);
  EXPECT_EQ(at.measure, "mean gradients of 4 batches, distance relative to that of two sets as written");
  EXPECT_FALSE(beyond.passed);
  EXPECT_NEAR(beyond.value, 1.51, 1e-12);
  EXPECT_TRUE(judge_batches(0, 0, true).passed);
  EXPECT_FALSE(judge_batches(1e-9, 0, true).passed);
}

TEST(BatchesCheck, WhatIsNotANumberNeverPasses) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(judge_batches(nan, 1, true).passed);
  EXPECT_FALSE(judge_batches(1, nan, true).passed);
  EXPECT_FALSE(judge_batches(infinite, infinite, true).passed);
  EXPECT_THAT(judge_batches(0, 1, false).measure, HasSubstr("not finite"));
  EXPECT_FALSE(judge_batches(0, 1, false).passed);
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
    NumericCheck check(*job_, [] { return true; },
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
  EXPECT_EQ(job_->exact_batches, kCheckedBatches);
  FakeJob& job = *job_;
  NumericCheck check(job, [] { return true; }, {[&job] { return job.now_s(); }, [] { return 100.0; }});
  job.exact_batches = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(check.prepare(NumericClass::rounding, {{"knob", "true"}}));
    ASSERT_TRUE(check.prepare(NumericClass::rounding, {}));
  }
  EXPECT_EQ(job.exact_batches, kCheckedBatches);
}

}  // namespace
}  // namespace headrace
