#include "data/loader/detail/autotune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/loader/detail/rate_meter.h"

namespace headrace::detail {
namespace {

using testing::HasSubstr;
using Kind = Proposal::Kind;

constexpr double kMs = 1e-3;

SettingBounds bounds_of(std::int64_t batch_size = 1, double cores = 2) {
  return {.low = {1, 1}, .high = {16, 64}, .batch_size = batch_size, .cores = cores};
}

// A loader that does as the model says.
struct Costs {
  double service_s, consumer_busy_s, cpu_share = 0.0;
  double cores = 2;
  double wait_s = 0;  // Beyond what the rates explain.
  double room_s = 0;  // Of the threads.

  LoaderRates at(const LoaderSetting& setting) const {
    double made = static_cast<double>(setting.num_workers) / service_s;
    if (cpu_share > 0) made = std::min(made, cores / (service_s * cpu_share));
    return {.consumer_busy_s = consumer_busy_s,
            .wait_s = std::max(1 / made - consumer_busy_s, 0.0) + wait_s,
            .error_s = 0,
            .service_s = service_s,
            .room_s = room_s,
            .cpu_share = cpu_share};
  }
};

TEST(Autotune, ProposesTheFewestThreadsThatFeedTheConsumerAndTheDepthThatKeepsThemBusy) {
  const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
  const LoaderSetting now{1, 2};
  const auto proposal = propose(costs.at(now), now, bounds_of());
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->kind, Kind::more_threads);
  EXPECT_EQ(proposal->to, (LoaderSetting{6, 13}));  // 5 would do if all batches took equally long.
  EXPECT_DOUBLE_EQ(proposal->cycle_s, 1 * kMs);
  EXPECT_THAT(proposal->why, HasSubstr("a batch takes the threads 5 ms (0 % computing) and the consumer 1 ms"));
  EXPECT_FALSE(propose(costs.at(proposal->to), proposal->to, bounds_of()));
}

TEST(Autotune, StagesThatComputeGetNoMoreThreadsThanTheCoresAndWaitingOnesNoMoreThanTheBound) {
  const LoaderSetting now{1, 2};
  const Costs computing{.service_s = 50 * kMs, .consumer_busy_s = 1 * kMs, .cpu_share = 1};
  EXPECT_EQ(propose(computing.at(now), now, bounds_of(8))->to.num_workers, 2);
  const Costs half{.service_s = 50 * kMs, .consumer_busy_s = 1 * kMs, .cpu_share = 0.5};
  EXPECT_EQ(propose(half.at(now), now, bounds_of(8))->to.num_workers, 4);
  const Costs waiting{.service_s = 50 * kMs, .consumer_busy_s = 1 * kMs};
  EXPECT_EQ(propose(waiting.at(now), now, bounds_of(8))->to.num_workers, 16);
}

TEST(Autotune, AConsumerThatDoesNotWaitKeepsWhatThereIs) {
  const LoaderSetting now{2, 2};
  const Costs costs{.service_s = 2 * kMs, .consumer_busy_s = 1.3 * kMs};
  EXPECT_FALSE(propose(costs.at(now), now, bounds_of()));
}

TEST(Autotune, ComesDownWhenTheCostFallsButNotForOneQuietMoment) {
  Autotuner tuner{bounds_of(), {6, 13}};
  const Costs dear{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs},
      cheap{.service_s = 0.1 * kMs, .consumer_busy_s = 1 * kMs};
  EXPECT_FALSE(tuner.step(cheap.at(tuner.now()), 32, 1));
  EXPECT_FALSE(tuner.step(dear.at(tuner.now()), 64, 2));
  EXPECT_FALSE(tuner.step(cheap.at(tuner.now()), 96, 3));
  EXPECT_EQ(tuner.step(cheap.at(tuner.now()), 128, 4), (LoaderSetting{1, 13}));
  EXPECT_FALSE(tuner.step(cheap.at(tuner.now()), 160, 5));
  ASSERT_EQ(tuner.decisions().size(), 1U);
  const LoaderDecision& made = tuner.decisions().front();
  EXPECT_EQ(made.what, "data.num_workers");
  EXPECT_EQ(made.from, 6);
  EXPECT_EQ(made.to, 1);
  EXPECT_EQ(made.batch, 128);
  EXPECT_DOUBLE_EQ(made.at_s, 4);
  EXPECT_NEAR(made.before, 1000, 1e-6);
  EXPECT_NEAR(made.after.value(), 1000, 1e-6);
  EXPECT_FALSE(made.rolled_back);
}

TEST(Autotune, AChangeThatMadeItSlowerIsTakenBackAndNotTriedAgainForAWhile) {
  Autotuner tuner{bounds_of(), {1, 64}};
  const LoaderSetting start = tuner.now();
  const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
  const auto tried = tuner.step(costs.at(start), 32, 1);
  ASSERT_TRUE(tried);
  const LoaderRates worse{.consumer_busy_s = 1 * kMs, .wait_s = 9 * kMs, .service_s = 60 * kMs};
  EXPECT_EQ(tuner.step(worse, 100, 2), start);
  ASSERT_EQ(tuner.decisions().size(), 2U);
  EXPECT_TRUE(tuner.decisions()[0].rolled_back);
  EXPECT_NEAR(tuner.decisions()[0].before, 200, 1e-6);
  EXPECT_NEAR(tuner.decisions()[0].after.value(), 100, 1e-6);
  EXPECT_EQ(tuner.decisions()[1].to, 1);
  EXPECT_THAT(tuner.decisions()[1].why, HasSubstr("rolled back: 200 samples/s before, 100 after"));
  for (const std::int64_t batch : {132, 200, 355}) EXPECT_FALSE(tuner.step(costs.at(start), batch, 3)) << batch;
  EXPECT_TRUE(tuner.step(costs.at(start), 356, 4));  // 256 batches later,
  EXPECT_EQ(tuner.step(worse, 400, 5), start);
  EXPECT_FALSE(tuner.step(costs.at(start), 900, 6));  // then 512,
  const Costs changed{.service_s = 10 * kMs, .consumer_busy_s = 1 * kMs};
  EXPECT_TRUE(tuner.step(changed.at(start), 901, 7));  // unless the costs have changed.
}

TEST(Autotune, WhatDidNotPayRestsAlsoWhenANumberCameBetween) {
  Autotuner tuner{bounds_of(), {1, 64}};
  const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
  ASSERT_TRUE(tuner.step(costs.at({1, 64}), 32, 1));
  const LoaderRates worse{.consumer_busy_s = 1 * kMs, .wait_s = 9 * kMs, .service_s = 60 * kMs};
  ASSERT_EQ(tuner.step(worse, 100, 2), (LoaderSetting{1, 64}));
  SettingBounds fixed = bounds_of();
  fixed.low.num_workers = fixed.high.num_workers = 2;
  tuner.reset(fixed, {2, 64});
  tuner.reset(bounds_of(), {1, 64});
  EXPECT_FALSE(tuner.step(costs.at({1, 64}), 300, 3));
  EXPECT_TRUE(tuner.step(costs.at({1, 64}), 356, 4));
}

TEST(Autotune, ThreadsThatBringNothingAreTakenBack) {
  Autotuner tuner{bounds_of(), {1, 64}};
  const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
  ASSERT_TRUE(tuner.step(costs.at(tuner.now()), 32, 1));
  const LoaderRates same{
      .consumer_busy_s = 1 * kMs, .wait_s = 4 * kMs, .service_s = 30 * kMs};  // They wait for each other.
  EXPECT_EQ(tuner.step(same, 100, 2), (LoaderSetting{1, 64}));
}

TEST(Autotune, ADifferenceWithinTheNoiseIsNoReasonToGoBack) {
  Autotuner tuner{bounds_of(), {1, 2}};
  LoaderRates bursty{
      .consumer_busy_s = 5 * kMs, .wait_s = 2 * kMs, .error_s = 1.5 * kMs, .service_s = 3 * kMs, .room_s = 1 * kMs};
  ASSERT_TRUE(tuner.step(bursty, 32, 1));
  bursty.wait_s = 3 * kMs;
  const auto next = tuner.step(bursty, 64, 2);
  EXPECT_FALSE(tuner.decisions().front().rolled_back);
  EXPECT_EQ(next, (LoaderSetting{1, 8}));
}

TEST(Autotune, DepthGrowsUntilStarvationStopsAndNoFurtherThanItsBound) {
  for (const std::int64_t bound : {64, 10}) {
    SettingBounds bounds = bounds_of();
    bounds.high.prefetch = bound;
    Autotuner tuner{bounds, {1, 2}};
    std::int64_t batch = 0;
    for (int i = 0; i < 20; ++i) {  // A burst of 50 ms every 20 batches, which a window of batches of 5 ms covers.
      Costs costs{.service_s = 3.45 * kMs, .consumer_busy_s = 5 * kMs, .room_s = 1 * kMs};
      costs.wait_s = std::max(50 - 5.0 * static_cast<double>(tuner.now().prefetch), 0.0) / 20 * kMs;
      batch += 32;
      tuner.step(costs.at(tuner.now()), batch, 0);
    }
    EXPECT_EQ(tuner.now(), (LoaderSetting{1, bound == 64 ? 16 : 10}));
    for (const LoaderDecision& made : tuner.decisions()) {
      EXPECT_EQ(made.what, "data.prefetch_batches");
      EXPECT_FALSE(made.rolled_back);
    }
  }
}

TEST(Autotune, NoDepthIsAddedWhereTheWindowWasNeverFull) {
  const Costs costs{.service_s = 3 * kMs, .consumer_busy_s = 5 * kMs, .wait_s = 1 * kMs};
  EXPECT_FALSE(propose(costs.at({1, 2}), {1, 2}, bounds_of()));
}

TEST(Autotune, WhatIsFixedStays) {
  const Costs costs{.service_s = 50 * kMs, .consumer_busy_s = 1 * kMs, .wait_s = 1 * kMs, .room_s = 9 * kMs};
  SettingBounds bounds = bounds_of(8);
  bounds.low.num_workers = bounds.high.num_workers = 3;
  EXPECT_EQ(propose(costs.at({3, 2}), {3, 2}, bounds)->to, (LoaderSetting{3, 4}));
  bounds.low.prefetch = bounds.high.prefetch = 2;
  EXPECT_FALSE(propose(costs.at({3, 2}), {3, 2}, bounds));
  bounds.low.num_workers = 1;
  bounds.high.num_workers = 256;  // A window of 16 samples keeps no more busy.
  EXPECT_EQ(propose(costs.at({3, 2}), {3, 2}, bounds)->to, (LoaderSetting{16, 2}));
  EXPECT_FALSE(propose(costs.at({0, 2}), {0, 2}, bounds));  // The consumer loads by itself.
}

TEST(Autotune, DoesNotSwingWhenMeasurementsDo) {
  Autotuner tuner{bounds_of(), {1, 2}};
  for (int i = 0; i < 1000; ++i) {
    const double swing = 1 + 0.08 * ((i * 7919) % 11 - 5) / 5.0;
    const Costs costs{.service_s = 5 * kMs * swing, .consumer_busy_s = 1 * kMs};
    LoaderRates rates = costs.at(tuner.now());
    rates.error_s = 0.04 * kMs;
    tuner.step(rates, 32 * (i + 1), 0);
  }
  EXPECT_LE(tuner.decisions().size(), 6U);
  EXPECT_GE(tuner.now().num_workers, 5);
  EXPECT_LE(tuner.now().num_workers, 7);
}

TEST(Autotune, RefusedThreadsAreNotTriedAgain) {
  Autotuner tuner{bounds_of(), {1, 64}};
  const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
  ASSERT_TRUE(tuner.step(costs.at(tuner.now()), 32, 1));
  tuner.refuse(kNumWorkersKey, 2, "no more");
  EXPECT_EQ(tuner.now().num_workers, 2);
  EXPECT_EQ(tuner.decisions().back().to, 2);
  EXPECT_THAT(tuner.decisions().back().why, HasSubstr("; no more"));
  EXPECT_FALSE(tuner.decisions().back().rolled_back);  // One of them came.
  EXPECT_FALSE(tuner.step(costs.at(tuner.now()), 64, 2));
}

TEST(Autotune, OfTwoSettingsThatChangeTogetherTheOneThatIsRefusedIsTold) {
  for (const bool threads : {true, false}) {
    Autotuner tuner{bounds_of(), {1, 2}};
    const Costs costs{.service_s = 5 * kMs, .consumer_busy_s = 1 * kMs};
    ASSERT_EQ(tuner.step(costs.at(tuner.now()), 32, 1), (LoaderSetting{6, 13}));
    tuner.refuse(threads ? kNumWorkersKey : kPrefetchKey, threads ? 1 : 2, "not to be had");
    EXPECT_EQ(tuner.now(), threads ? (LoaderSetting{1, 13}) : (LoaderSetting{6, 2}));
    ASSERT_EQ(tuner.decisions().size(), 2U);
    for (const LoaderDecision& made : tuner.decisions()) {
      const bool refused = (made.what == kNumWorkersKey) == threads;
      EXPECT_EQ(made.rolled_back, refused) << made.what;
      EXPECT_EQ(made.to == made.from, refused) << made.what;
      EXPECT_EQ(made.why.find("not to be had") != std::string::npos, refused) << made.what;
    }
  }
}

// A source of files that wait 8 of the 10 ms that a batch takes its thread.
LoaderRates reading(CacheFit fit) {
  return {.consumer_busy_s = 1 * kMs,
          .wait_s = 9 * kMs,
          .service_s = 10 * kMs,
          .cpu_share = 0.2,
          .reading_s = 8 * kMs,
          .rest_s = 0.5 * kMs,
          .read_s = 8 * kMs,
          .decode_s = 1.5 * kMs,
          .fit = fit};
}

SettingBounds one_thread() {
  SettingBounds bounds = bounds_of();
  bounds.high.num_workers = 1;
  bounds.batches = 100;
  return bounds;
}

TEST(Autotune, ACacheTakesItsPartOfReadingAndDecoding) {
  const LoaderRates rates = reading({.decoded = 0.5, .encoded = 1});
  const LoaderRates files = with_cache(rates, Cache::encoded);
  EXPECT_NEAR(files.service_s, 2 * kMs, 1e-12);
  EXPECT_NEAR(files.cpu_share, 1, 1e-12);  // What waited was reading.
  const LoaderRates images = with_cache(rates, Cache::decoded);
  EXPECT_NEAR(images.service_s, 5.25 * kMs, 1e-12);
  EXPECT_NEAR(images.cpu_share, 1.25 / 5.25, 1e-12);
  EXPECT_NEAR(with_cache(rates, Cache::none).service_s, rates.service_s, 1e-12);
}

TEST(Autotune, ProposesTheCacheThatGivesMostAndFilesWhereImagesGiveNoMore) {
  const LoaderSetting now{1, 64};
  const auto proposed = [&](const LoaderRates& rates, const SettingBounds& bounds = one_thread()) {
    const auto proposal = propose(rates, now, bounds);
    return proposal && proposal->kind == Kind::other_cache ? proposal->to.cache : Cache::none;
  };
  EXPECT_EQ(proposed(reading({.decoded = 0.5, .encoded = 1})), Cache::encoded);
  EXPECT_EQ(proposed(reading({.decoded = 1, .encoded = 1})), Cache::decoded);
  LoaderRates undecoded = reading({.decoded = 1, .encoded = 1});
  undecoded.decode_s = 0.01 * kMs;
  EXPECT_EQ(proposed(undecoded), Cache::encoded);
  EXPECT_EQ(proposed(reading({.decoded = 0.04, .encoded = 0.04})), Cache::none);  // Less than 5 % faster.
  EXPECT_EQ(proposed(reading({})), Cache::none);
  LoaderRates fed = reading({.decoded = 1, .encoded = 1});
  fed.wait_s = 0;
  fed.consumer_busy_s = 10 * kMs;
  EXPECT_EQ(proposed(fed), Cache::none);
  EXPECT_EQ(proposed(reading({.decoded = 1, .encoded = 1}), bounds_of()), Cache::none);  // Threads come first.
}

TEST(Autotune, ACacheThatBringsNothingIsTakenBackAndRestsForEightEpochs) {
  Autotuner tuner{one_thread(), {1, 64}};
  const LoaderRates before = reading({.decoded = 1, .encoded = 1});
  EXPECT_EQ(tuner.step(before, 32, 1), (LoaderSetting{1, 64, Cache::decoded}));
  EXPECT_EQ(tuner.step(before, 300, 2), (LoaderSetting{1, 64, Cache::none}));
  ASSERT_EQ(tuner.decisions().size(), 2U);
  const LoaderDecision& made = tuner.decisions()[0];
  EXPECT_EQ(made.what, "data.cache");
  EXPECT_EQ(made.text_of(made.from), "none");
  EXPECT_EQ(made.text_of(made.to), "decoded");
  for (const std::int64_t no_cache : {-1, 4, 1 << 20}) EXPECT_EQ(made.text_of(no_cache), "unknown");
  EXPECT_TRUE(made.rolled_back);
  EXPECT_NEAR(made.before, 100, 1e-6);
  EXPECT_NEAR(made.after.value(), 100, 1e-6);
  EXPECT_FALSE(tuner.step(before, 1099, 3));
  EXPECT_TRUE(tuner.step(before, 1100, 4));
}

TEST(Autotune, ACacheThatCannotBeHadIsNotTriedAgain) {
  Autotuner tuner{one_thread(), {1, 64}};
  const LoaderRates rates = reading({.decoded = 1, .encoded = 1});
  ASSERT_TRUE(tuner.step(rates, 32, 1));
  tuner.refuse(kCacheKey, static_cast<std::int64_t>(Cache::none), "no memory");
  EXPECT_EQ(tuner.now(), (LoaderSetting{1, 64}));
  EXPECT_TRUE(tuner.decisions().back().rolled_back);
  EXPECT_FALSE(tuner.step(rates, 10'000, 2));
}

TEST(RateMeter, StagesAreOfWhatPassedThemAndKnownFromBeforeWhereAllIsCached) {
  RateMeter meter;
  std::int64_t now_ns = 0;
  WorkerTotals totals;
  const auto deliver = [&](std::int64_t read, int times) {  // Of 8 samples, `read` are not cached.
    for (int i = 0; i < times; ++i) {
      now_ns += 1'000'000;
      totals.samples += 8;
      totals.busy_ns += 80'000 + read * 150'000;
      totals.read += read;
      totals.read_ns += read * 100'000;
      totals.decoded += read;
      totals.decode_ns += read * 50'000;
      meter.add(now_ns, now_ns, totals);
    }
  };
  for (const std::int64_t read : {4, 0}) {
    meter.restart(0);
    deliver(read, 34);
    const auto rates = meter.rates(8);
    ASSERT_TRUE(rates);
    EXPECT_NEAR(rates->read_s, 0.8 * kMs, 1e-12);
    EXPECT_NEAR(rates->decode_s, 0.4 * kMs, 1e-12);
    EXPECT_NEAR(rates->reading_s, static_cast<double>(read) * 0.1 * kMs, 1e-12);
    EXPECT_NEAR(rates->rest_s, 0.08 * kMs, 1e-12);
  }
}

TEST(RateMeter, MeansAreOfABatchAndLeaveOutTheLongestPause) {
  RateMeter meter;
  meter.restart(3);
  std::int64_t now_ns = 0;
  WorkerTotals totals;
  const auto deliver = [&](std::int64_t own_us, std::int64_t wait_us) {
    const std::int64_t asked_ns = now_ns + own_us * 1000;
    now_ns = asked_ns + wait_us * 1000;
    totals.samples += 8;
    totals.busy_ns += 3'000'000;
    totals.room_ns += 1'000'000;
    totals.cpu_ns += 500'000;
    totals.cpu_busy_ns += 2'000'000;
    meter.add(asked_ns, now_ns, totals);
  };
  for (int i = 0; i < 4; ++i) deliver(50'000, 50'000);  // Left out: made by the setting before.
  for (int i = 0; i < 31; ++i) deliver(700, 300);
  EXPECT_FALSE(meter.rates(8));
  deliver(5'000'000, 100);  // A checkpoint.
  const auto rates = meter.rates(8);
  ASSERT_TRUE(rates);
  EXPECT_NEAR(rates->consumer_busy_s, 0.7 * kMs, 1e-12);
  EXPECT_NEAR(rates->wait_s, 0.3 * kMs, 1e-12);
  EXPECT_NEAR(rates->error_s, 0, 1e-9);
  EXPECT_NEAR(rates->service_s, 3 * kMs, 1e-12);
  EXPECT_NEAR(rates->cpu_share, 0.25, 1e-12);
  EXPECT_NEAR(rates->room_s, 1 * kMs, 1e-12);
  EXPECT_NEAR(meter.rates(16)->service_s, 6 * kMs, 1e-12);
}

TEST(RateMeter, TheTimeBetweenTwoEpochsIsNobodys) {
  RateMeter meter;
  meter.restart(0);
  std::int64_t now_ns = 0;
  for (int i = 1; i <= 60; ++i) {
    if (i % 20 == 0) {
      meter.pause();
      now_ns += 3'000'000'000;  // An evaluation.
    }
    now_ns += 1'000'000;
    meter.add(now_ns, now_ns, {.samples = i});
  }
  ASSERT_TRUE(meter.rates(1));
  EXPECT_NEAR(meter.rates(1)->consumer_busy_s, 1 * kMs, 1e-12);
}

TEST(RateMeter, SpreadShowsAsTheErrorOfTheMean) {
  RateMeter meter;
  meter.restart(0);
  std::int64_t now_ns = 0;
  meter.add(0, 0, {.samples = 0});
  for (int i = 1; i <= 101; ++i) {  // Waits of 0 and 2 ms in turn: a deviation of 1 ms.
    const std::int64_t asked_ns = now_ns + (i == 1 ? 2'000'000 : 1'000'000);  // The first is left out.
    now_ns = asked_ns + (i % 2 == 0 ? 2'000'000 : 0);
    meter.add(asked_ns, now_ns, {.samples = i});
  }
  EXPECT_NEAR(meter.rates(1)->error_s, 0.1 * kMs, 1e-9);
}

}  // namespace
}  // namespace headrace::detail
