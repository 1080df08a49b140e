#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/diagnosis.h>
#include <headrace/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "insight/diagnose/json.h"
#include "insight/diagnose/sample_report.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// 40 steps of 100 ms; `wait` is the share that waits for data. The rest is compute, without a finding of its own.
DiagnosisInput input_with_wait(double wait) {
  DiagnosisInput input;
  const double rest = 4.0 - 4.0 * wait;
  input.split = sample_split(4.0 * wait, 0, 0.3 * rest, 0.6 * rest, 0.1 * rest, 0);
  input.samples_per_step = 128;
  input.cores = 4;
  input.compute_threads = 2;
  return input;
}

std::vector<std::string> codes(const Diagnosis& diagnosis) {
  std::vector<std::string> result;
  for (const Finding& finding : diagnosis.findings) result.push_back(finding.code);
  return result;
}

TEST(Diagnosis, HealthyDataHasNoFinding) {
  const Diagnosis diagnosis = diagnose(input_with_wait(0.01));
  EXPECT_EQ(diagnosis.bound, Bound::compute);
  EXPECT_NEAR(diagnosis.samples_per_second, 1280, 1e-9);
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_THAT(diagnosis.sentence, StartsWith("compute-bound: 89 % of a step is forward and backward"));
}

TEST(Diagnosis, PredictsThatFreeDataRemovesTheWait) {
  const Diagnosis diagnosis = diagnose(input_with_wait(0.2));
  EXPECT_NEAR(diagnosis.predicted_free_data_gain, 0.25, 1e-12);
  EXPECT_EQ(diagnosis.bound, Bound::data);
  EXPECT_FALSE(diagnosis.measured_free_data_gain.has_value());
  EXPECT_THAT(diagnosis.sentence, StartsWith("data-bound: 20 % of a step waits for data; "));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("25 % faster (predicted)"));
}

TEST(Diagnosis, BelievesTheMeasurementWhereThereIsOne) {
  DiagnosisInput input = input_with_wait(0.2);
  input.free_data_step_s = 0.098;
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_EQ(diagnosis.bound, Bound::compute);
  ASSERT_TRUE(diagnosis.measured_free_data_gain.has_value());
  EXPECT_NEAR(*diagnosis.measured_free_data_gain, 0.1 / 0.098 - 1, 1e-12);
  EXPECT_THAT(diagnosis.sentence, HasSubstr("2.0 % faster (measured; predicted 25 %)"));
}

TEST(Diagnosis, IsDataBoundFromTenPercentOn) {
  DiagnosisInput input = input_with_wait(0.0);
  input.free_data_step_s = 0.1 / 1.101;
  EXPECT_EQ(diagnose(input).bound, Bound::data);
  input.free_data_step_s = 0.1 / 1.099;
  EXPECT_EQ(diagnose(input).bound, Bound::compute);
}

TEST(Diagnosis, KnowsNoBoundWhereMostOfAStepLiesInNoPart) {
  DiagnosisInput input = input_with_wait(0.0);
  input.split.other_s += 0.52 * input.split.total_s;
  input.split.forward_s -= 0.52 * input.split.total_s;
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_EQ(diagnosis.bound, Bound::unknown);
  EXPECT_STREQ(to_string(diagnosis.bound), "unknown");
  EXPECT_THAT(diagnosis.sentence, StartsWith("what bounds it is not known: "));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("of a step lies in no part"));
  input.free_data_step_s = 0.1;
  EXPECT_EQ(diagnose(input).bound, Bound::compute);
}

TEST(Diagnosis, GivesBackTheCoreTimeThatLoadingTookFromCompute) {
  DiagnosisInput input = input_with_wait(0.1);  // 0.4 s of 4 s wait.
  input.cores = 2;
  input.compute_threads = 2;
  input.num_workers = 1;
  input.loader_busy_s = 1.6;  // 0.4 s of it ran in the wait, 1.2 core seconds came from 2 compute threads.
  EXPECT_NEAR(diagnose(input).predicted_free_data_gain, 4.0 / (4.0 - 0.4 - 0.6) - 1, 1e-12);
  EXPECT_THAT(codes(diagnose(input)), testing::Contains("cores_oversubscribed"));
  input.cores = 3;  // A core for every thread: nothing was taken.
  EXPECT_NEAR(diagnose(input).predicted_free_data_gain, 4.0 / 3.6 - 1, 1e-12);
  EXPECT_THAT(codes(diagnose(input)), testing::Not(testing::Contains("cores_oversubscribed")));
}

TEST(Diagnosis, PredictsFromTheUndisturbedStepWhereItWasMeasured) {
  DiagnosisInput input = input_with_wait(0.2);  // 40 steps of 100 ms, 80 ms of each computing.
  input.cores = 2;
  input.compute_threads = 2;
  input.loader_busy_s = 0.01;  // Little core time, but compute whose threads wait for each other lost more.
  input.undisturbed_step_s = 0.05;
  EXPECT_NEAR(diagnose(input).predicted_free_data_gain, 1.0, 1e-12);
  EXPECT_THAT(diagnose(input).sentence, HasSubstr("loader workers take 30 % of it from compute"));
  input.undisturbed_step_s = 0.081;  // Noise: nothing was taken.
  EXPECT_NEAR(diagnose(input).predicted_free_data_gain, 0.25, 1e-12);
}

TEST(Diagnosis, StaysFiniteWhenAStepDoesNothingButWait) {
  DiagnosisInput input = input_with_wait(1.0);
  input.cores = 1;
  input.loader_busy_s = 1e9;
  EXPECT_NEAR(diagnose(input).predicted_free_data_gain, 99, 1e-9);
}

TEST(Diagnosis, FindsSlowDataJustAboveItsThreshold) {
  const auto with_wait = [](double wait) {
    DiagnosisInput input = input_with_wait(0);
    input.split = sample_split(wait - 0.1, 0.1, 0.3, 0.6, 0.1, 0);
    return codes(diagnose(input));
  };
  EXPECT_THAT(with_wait(0.2999), IsEmpty());
  EXPECT_THAT(with_wait(0.3001), testing::ElementsAre("data_loading_slow"));
}

TEST(Diagnosis, FindsHighMemoryJustAboveItsThreshold) {
  DiagnosisInput input = input_with_wait(0);
  input.mean_memory = 8'000'000'000;
  EXPECT_THAT(codes(diagnose(input)), IsEmpty());
  input.mean_memory = 8'000'000'001;
  EXPECT_THAT(codes(diagnose(input)), testing::ElementsAre("high_memory"));
  input.mean_memory.reset();
  input.peak_memory = 9'000'000'000;
  EXPECT_THAT(diagnose(input).findings.at(0).sentence, StartsWith("Peak memory is 9.00 GB"));
  input.thresholds.memory_bytes = 10'000'000'000;
  EXPECT_THAT(codes(diagnose(input)), IsEmpty());
}

TEST(Diagnosis, FindsSpeedThatDegradesJustBelowItsThreshold) {
  // 30 steps at 1 and 10 at r of that speed: the mean of all is (30 + 10 r) / 40, so the ratio is 0.8 at r = 0.75.
  const auto with_last_speed = [](double speed) {
    DiagnosisInput input = input_with_wait(0);
    std::fill(input.split.step_s.begin(), input.split.step_s.end(), 0.1);
    std::fill(input.split.step_s.end() - 10, input.split.step_s.end(), 0.1 / speed);
    return input;
  };
  EXPECT_THAT(codes(diagnose(with_last_speed(0.751))), IsEmpty());
  EXPECT_THAT(codes(diagnose(with_last_speed(0.749))), testing::ElementsAre("speed_degraded"));
  DiagnosisInput lenient = with_last_speed(0.749);
  lenient.thresholds.speed_ratio = 0.7;
  EXPECT_THAT(codes(diagnose(lenient)), IsEmpty());
}

TEST(Bottlenecks, EachRuleHoldsJustBeyondItsLimitAndNotAtIt) {
  BottleneckInput healthy;
  healthy.batches = 40;
  healthy.data_loading_s = 3;  // Of 10 s of compute: 0.3 of it.
  healthy.compute_s = 10;
  healthy.mean_memory = 8'000'000'000;
  healthy.speeds.assign(40, 100);
  // The mean of all is (30 x 100 + 10 x 75) / 40 = 93.75, of which 0.8 is 75, exactly.
  std::fill(healthy.speeds.end() - 10, healthy.speeds.end(), 75);
  const auto codes_of = [](const BottleneckInput& input) {
    std::vector<std::string> found;
    for (const Finding& finding : identify_bottlenecks(input)) found.push_back(finding.code);
    return found;
  };
  EXPECT_THAT(codes_of(healthy), IsEmpty());
  BottleneckInput slow = healthy;
  slow.data_loading_s = 3.001;
  EXPECT_THAT(codes_of(slow), testing::ElementsAre("data_loading_slow"));
  BottleneckInput large = healthy;
  large.mean_memory = 8'000'000'001;
  EXPECT_THAT(codes_of(large), testing::ElementsAre("high_memory"));
  BottleneckInput degraded = healthy;
  degraded.speeds.back() = 74.9;
  EXPECT_THAT(codes_of(degraded), testing::ElementsAre("speed_degraded"));
  EXPECT_FALSE(identify_bottlenecks(degraded).front().advice.empty());
  degraded.thresholds.speed_ratio = 0.7;
  EXPECT_THAT(codes_of(degraded), IsEmpty());
}

TEST(Bottlenecks, WhatIsNotMeasuredIsNoFindingAndWhatIsNoFigureIsRefused) {
  BottleneckInput input;
  EXPECT_THROW(identify_bottlenecks(input), Error);
  input.batches = 1;
  EXPECT_THAT(identify_bottlenecks(input), IsEmpty());
  input.data_loading_s = -1;
  EXPECT_THROW(identify_bottlenecks(input), Error);
}

// Each by itself, in both functions that take them.
TEST(Bottlenecks, AThresholdOutsideItsRangeIsNamedWithWhatWasFound) {
  const std::vector<std::pair<void (*)(FindingThresholds&), std::string>> spoiled{
      {[](FindingThresholds& given) { given.data_loading_ratio = -0.1; },
       "thresholds.data_loading_ratio: wanted a finite number of at least 0, found -0.1"},
      {[](FindingThresholds& given) { given.memory_bytes = -1; },
       "thresholds.memory_bytes: wanted a finite number of at least 0, found -1"},
      {[](FindingThresholds& given) { given.speed_ratio = std::nan(""); },
       "thresholds.speed_ratio: wanted a finite number of at least 0, found nan"},
      {[](FindingThresholds& given) { given.speed_steps = 0; }, "thresholds.speed_steps: wanted at least 1, found 0"},
      {[](FindingThresholds& given) { given.optimizer_share = INFINITY; },
       "thresholds.optimizer_share: wanted a finite number of at least 0, found inf"},
      {[](FindingThresholds& given) { given.unaccounted_share = -1; },
       "thresholds.unaccounted_share: wanted a finite number of at least 0, found -1"}};
  for (const auto& [spoil, message] : spoiled) {
    BottleneckInput figures;
    figures.batches = 1;
    spoil(figures.thresholds);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { identify_bottlenecks(figures); }), HasSubstr(message));
    DiagnosisInput input = input_with_wait(0.1);
    spoil(input.thresholds);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { diagnose(input); }), HasSubstr(message));
  }
}

TEST(Diagnosis, FindsASlowOptimizerAndTimeInNoPart) {
  DiagnosisInput input = input_with_wait(0);
  input.split = sample_split(0, 0, 0.3, 0.35, 0.21, 0.14);
  EXPECT_THAT(codes(diagnose(input)), testing::ElementsAre("optimizer_slow", "time_unaccounted"));
  input.split = sample_split(0, 0, 0.3, 0.42, 0.19, 0.09);
  EXPECT_THAT(codes(diagnose(input)), IsEmpty());
}

TEST(Diagnosis, RefusesAnInputWithoutStepsOrThreads) {
  for (const auto& spoil : std::vector<void (*)(DiagnosisInput&)>{
           [](DiagnosisInput& input) { input.split = {}; }, [](DiagnosisInput& input) { input.samples_per_step = 0; },
           [](DiagnosisInput& input) { input.cores = 0; }, [](DiagnosisInput& input) { input.compute_threads = 0; },
           [](DiagnosisInput& input) { input.num_workers = 0; }}) {
    DiagnosisInput input = input_with_wait(0.1);
    spoil(input);
    EXPECT_THROW(diagnose(input), Error);
  }
}

TEST(Diagnosis, JsonSaysNullForWhatWasNotMeasured) {
  DiagnosisInput input = input_with_wait(0.2);
  nlohmann::ordered_json json = to_json(diagnose(input));
  EXPECT_EQ(json["bound"], "data");
  EXPECT_TRUE(json["measured_free_data_gain"].is_null());
  input.free_data_step_s = 0.08;
  json = to_json(diagnose(input));
  EXPECT_NEAR(json["measured_free_data_gain"].get<double>(), 0.25, 1e-12);
  EXPECT_EQ(nlohmann::ordered_json::parse(json_text(diagnose(input))), json);
}

}  // namespace
}  // namespace headrace
