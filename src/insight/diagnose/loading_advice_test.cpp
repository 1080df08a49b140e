
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loading_advice.h>
#include <headrace/report.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/error_of.h"
#include "insight/diagnose/json.h"
#include "insight/diagnose/sample_report.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kMs = 1e-3;

LoadingInput input_of(double read_ms, double decode_ms, double augment_ms, double own_ms, int threads) {
  LoadingInput input;
  input.costs = {read_ms * kMs, decode_ms * kMs, augment_ms * kMs, 0, 0.0};
  input.consumer_busy_s = own_ms * kMs;
  input.num_workers = threads;
  input.cores = 64;  // Nobody waits for a core.
  input.gpu = "unavailable: no libnvidia-ml.so.1";
  return input;
}

// A loader and its consumer, sample by sample, without a clock: threads take the next sample when they are free and
// there is room for it, the consumer takes them in order. Every sample costs the same but for a ripple. Returns samples
// a second.
double simulated_rate(double sample_s, double consumer_busy_s, int threads, int room) {
  constexpr int kSamples = 4000;
  std::vector<double> free_at(static_cast<std::size_t>(std::max(threads, 1)), 0.0), taken_at(kSamples);
  double consumer = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double cost = sample_s * (i % 7 == 0 ? 1.6 : 0.9);  // Mean 1.
    if (threads == 0) {
      consumer += cost + consumer_busy_s;
      continue;
    }
    const auto thread = std::min_element(free_at.begin(), free_at.end());
    const double has_room = i < room ? 0 : taken_at[static_cast<std::size_t>(i - room)];
    *thread = std::max(*thread, has_room) + cost;
    taken_at[static_cast<std::size_t>(i)] = std::max(consumer, *thread);
    consumer = taken_at[static_cast<std::size_t>(i)] + consumer_busy_s;
  }
  return kSamples / consumer;
}

TEST(LoadingAdvice, PredictsTheRateWithoutTheDearestTransformWithinAQuarterOfASimulation) {
  for (const int threads : {0, 1, 2, 4}) {
    for (const double own_ms : {0.01, 0.4, 1.0, 2.5, 9.0}) {
      for (const double share : {0.05, 0.3, 0.7}) {
        LoadingInput input = input_of(0.5, 2, 3, own_ms, threads);
        input.samples_per_second = simulated_rate(5.5 * kMs, input.consumer_busy_s, threads, 64);
        input.transforms = {{"flip", "data.transform.flip_probability = 0", 0, share / 2, share / 2},
                            {"pad", "data.transform.pad = 0", 0, share, share}};
        const LoadingAdvice advice = advise(input);
        ASSERT_EQ(advice.proposals.front().name, "without pad");
        const double wanted = simulated_rate((5.5 - share * 5) * kMs, input.consumer_busy_s, threads, 64);
        EXPECT_NEAR(advice.proposals.front().predicted_samples_per_second.value(), wanted, 0.25 * wanted)
            << threads << " threads, " << own_ms << " ms, " << share;
      }
    }
  }
}

TEST(LoadingAdvice, WhatACacheSparesIsNotSavedAgain) {
  LoadingInput input = input_of(1, 0, 1, 0, 1);  // Kept decoded.
  input.samples_per_second = 500;
  input.transforms = {{"crop", "data.transform.crop = \"center\"", 0, 0.9, 0.1},
                      {"flip", "data.transform.flip_probability = 0", 0, 0, 0.5},
                      {"pad", "data.transform.pad = 0", 0.2, 0, 0}};
  const Proposal proposal = advise(input).proposals.front();
  EXPECT_EQ(proposal.name, "without flip");
  EXPECT_NEAR(proposal.predicted_samples_per_second.value(), 500 * 2 / 1.5, 1e-9);
  input.costs.read_s = 4 * kMs;  // As of packed pixels, of which less is read then.
  EXPECT_EQ(advise(input).proposals.front().name, "without pad");
}

TEST(LoadingAdvice, WhereTheConsumerLimitsNothingIsGained) {
  LoadingInput input = input_of(0, 0.5, 0.5, 10, 1);
  input.samples_per_second = 100;
  EXPECT_DOUBLE_EQ(predicted_rate(input, 0.2 * kMs), 100);
}

TEST(LoadingAdvice, CoresUnderLoadingAndComputeBoundTheRate) {
  LoadingInput input = input_of(0, 1, 1, 1, 2);
  input.cores = 2;
  input.compute_threads = 2;
  input.samples_per_second = 500;
  // (2 + 1 x 2) / 2 = 2 ms a sample; half the loading leaves (1 + 2) / 2 = 1.5 ms.
  EXPECT_NEAR(predicted_rate(input, 1 * kMs), 500 * 2 / 1.5, 1e-9);
  input.cpu_share = 0;  // It only waits: two threads of 2 ms do not hold the consumer up.
  EXPECT_NEAR(predicted_rate(input, 1 * kMs), 500, 1e-9);
}

TEST(LoadingAdvice, MoreThreadsHelpAsFarAsTheCoresAndTheConsumerGo) {
  LoadingInput input = input_of(0, 4, 0, 1, 1);  // 4 ms on one thread beside 1 ms of the consumer.
  input.samples_per_second = 250;
  EXPECT_NEAR(predicted_rate_of_workers(input, 2), 500, 1e-9);
  EXPECT_NEAR(predicted_rate_of_workers(input, 8), 1000, 1e-9);  // The consumer's own pace.
  EXPECT_NEAR(predicted_rate_of_workers(input, 0), 200, 1e-9);   // It would load between its steps.
  input.cores = 2;
  EXPECT_NEAR(predicted_rate_of_workers(input, 8), 250 * 4 / 2.5, 1e-9);
  input.cpu_share = 0.25;  // Most of it waits: (1 + 1) / 2 ms of the cores.
  EXPECT_NEAR(predicted_rate_of_workers(input, 8), 1000, 1e-9);
}

TEST(LoadingAdvice, ProposesNothingToLeaveOutWhereThatSavesNothing) {
  LoadingInput input = input_of(1, 1, 1, 0, 1);
  input.samples_per_second = 300;
  EXPECT_EQ(advise(input).proposals.size(), 1U);  // The GPU's.
  input.transforms = {{"crop", "data.transform.crop = \"center\"", 0, -0.4, 0.1}};
  EXPECT_EQ(advise(input).proposals.size(), 1U);
}

TEST(LoadingAdvice, ProposesWhatSavesAPercentAndNotNoise) {
  LoadingInput input = input_of(0, 1, 1, 0, 1);
  input.samples_per_second = 500;
  input.transforms = {{"flip", "data.transform.flip_probability = 0", 0, 0, 0.019}};
  EXPECT_EQ(advise(input).proposals.size(), 1U);
  input.transforms.front().augment_share = 0.021;
  EXPECT_EQ(advise(input).proposals.front().name, "without flip");
  input.costs = {};  // Nothing was loaded yet.
  EXPECT_EQ(advise(input).proposals.size(), 1U);
}

TEST(LoadingAdvice, TheGpuIsNotApplicableAndSaysWhy) {
  LoadingInput input = input_of(1, 1, 1, 0, 1);
  const Proposal none = advise(input).proposals.back();
  EXPECT_FALSE(none.applicable);
  EXPECT_EQ(none.requested, "gpu");
  EXPECT_EQ(none.applied, "cpu");
  EXPECT_EQ(none.reason, "no CUDA device (unavailable: no libnvidia-ml.so.1)");
  EXPECT_FALSE(none.predicted_samples_per_second.has_value());
  input.gpu = "NVIDIA H200, 139.8 GiB";
  const Proposal unused = advise(input).proposals.back();
  EXPECT_FALSE(unused.applicable);
  EXPECT_THAT(unused.reason, HasSubstr("NVIDIA H200, 139.8 GiB, is not used"));
}

TEST(LoadingAdvice, RefusesNumbersThatNoMachineHas) {
  LoadingInput input = input_of(1, 1, 1, 0, 1);
  input.cores = 0;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { predicted_rate(input, 1); }), HasSubstr("cores (have 0)"));
  input.cores = 1;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { predicted_rate_of_workers(input, -1); }),
              HasSubstr("of the loader (-1)"));
}

TEST(LoadingAdvice, IsInTextPageAndJson) {
  LoadingInput input = input_of(0.5, 2.5, 1, 0, 1);
  input.costs.collate_s = 0.004 * kMs;
  input.samples_per_second = 250;
  input.transforms = {{"pad", "data.transform.pad = 0", 0, 0.2, 0.2}};
  Report report = sample_report();
  report.loading_advice = advise(input);
  report.loading_plan =
      Report::LoadingPlan{{{"read", 36, 54'000, 54'000}, {"resize, into the batch", 36, 90'000, 602'112}},
                          6,
                          656'112,
                          800'112,
                          2'000'000,
                          3'500'000,
                          {{{"Pad"}, false, ""}, {{"CenterCrop", "ToDtype"}, true, "of two sizes"}}};
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    for (const char* part :
         {"read 12", "decode 62", "augment 25", "collate 0.1", "copy to the device: 0",
          "without pad (data.transform.pad = 0): 303 samples/s predicted, now 250 samples/s",
          "augment on the GPU: not applicable: no CUDA device", "resize, into the batch", "602 kB", "Pad: by itself",
          "CenterCrop, ToDtype: one pass (of two sizes)",
          "656 kB copied and 800 kB touched for a sample; as 6 passes, one for each stage, it would be 2.0 MB and 3.5 "
          "MB"}) {
      EXPECT_THAT(text, HasSubstr(part));
    }
  }
  report.loading_plan->stages = 0;
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("656 kB copied and 800 kB touched for a sample."));
    EXPECT_THAT(text, Not(HasSubstr("one for each stage")));
  }
  const nlohmann::ordered_json json = to_json(*report.loading_advice);
  EXPECT_DOUBLE_EQ(json["seconds_a_sample"]["decode"], 2.5 * kMs);
  EXPECT_EQ(json["proposals"][0]["setting"], "data.transform.pad = 0");
  EXPECT_TRUE(json["proposals"][1]["predicted_samples_per_second"].is_null());
  input.costs.copy_s.reset();
  EXPECT_TRUE(to_json(advise(input))["seconds_a_sample"]["copy"].is_null());
}

}  // namespace
}  // namespace headrace
