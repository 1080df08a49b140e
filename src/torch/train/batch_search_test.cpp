#include "torch/train/detail/batch_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kHeld = 1'000'000;

// A step's bytes and seconds by its size; what a quarter more than the limit does not hold runs out.
struct Machine {
  std::function<std::int64_t(std::int64_t)> kept, peak;
  std::function<double(std::int64_t)> seconds = [](std::int64_t n) { return 0.01 * static_cast<double>(n); };
  double spread_s = 0;
  SearchBounds bounds{.held = kHeld};

  SearchResult search() const {
    return search_batch_size(bounds, [this](std::int64_t n) {
      BatchProbe probe{.batch_size = n, .peak_bytes = peak(n), .step_s = seconds(n), .spread_s = spread_s};
      probe.kept_bytes = kept(n);
      probe.gradient_peak_bytes = probe.peak_bytes;
      probe.ran_out = 4 * probe.peak_bytes > 5 * bounds.limit;
      return probe;
    });
  }
  std::int64_t exhaustive() const {
    std::int64_t best = 0;
    for (std::int64_t n = 1; n <= bounds.max; ++n) {
      if (peak(n) <= bounds.limit) best = n;
    }
    return best;
  }
};

std::vector<std::int64_t> sizes_of(const SearchResult& result) {
  std::vector<std::int64_t> sizes;
  for (const BatchProbe& probe : result.probes) sizes.push_back(probe.batch_size);
  return sizes;
}

std::int64_t failures(const SearchResult& result) {
  return std::count_if(result.probes.begin(), result.probes.end(), [](const BatchProbe& p) { return p.ran_out; });
}

Machine line(std::int64_t constant, std::int64_t per_sample, std::int64_t limit) {
  Machine machine;
  machine.kept = [=](std::int64_t n) { return kHeld + per_sample * n; };
  machine.peak = [=](std::int64_t n) { return kHeld + constant + per_sample * n; };
  machine.bounds.limit = limit;
  return machine;
}

TEST(BatchSearch, FindsTheLargestOfALineInThreeProbesWithoutAFailure) {
  for (const std::int64_t constant : {0, 5'000, 300'000, 4'000'000}) {
    for (const std::int64_t per_sample : {1'000, 33'333, 250'000}) {
      for (const std::int64_t largest : {32, 33, 39, 41, 64, 100, 257, 511}) {
        Machine machine = line(constant, per_sample, kHeld + constant + per_sample * largest + per_sample / 2);
        const SearchResult result = machine.search();
        EXPECT_EQ(machine.exhaustive(), largest);
        EXPECT_GE(result.largest, largest - 1) << constant << " " << per_sample << " " << largest;
        EXPECT_LE(result.largest, largest);
        EXPECT_LE(result.probes.size(), 3U);
        EXPECT_EQ(result.probes.front().batch_size, 32);
        EXPECT_EQ(failures(result), 0);
      }
    }
  }
}

TEST(BatchSearch, TellsTheLine) {
  const SearchResult result = line(40'000, 10'000, kHeld + 2'000'000).search();
  EXPECT_NEAR(result.slope, 10'000, 1e-6);
  EXPECT_NEAR(result.intercept, kHeld + 40'000, 1e-3);
  EXPECT_EQ(result.largest, 196);
  EXPECT_THAT(result.reason, HasSubstr("196 samples are the most"));
}

// As what each pair of samples has together.
TEST(BatchSearch, BytesThatJitterDoNotTiltTheLineThatIsTold) {
  Machine machine = line(2'000, 10'000, kHeld + 3'501'900);
  machine.peak = [](std::int64_t n) { return kHeld + 2'000 + 10'000 * n + (n % 2) * 8'000; };
  const SearchResult result = machine.search();
  EXPECT_THAT(sizes_of(result), ElementsAre(32, 348, 349));
  EXPECT_EQ(result.largest, 349);
  EXPECT_NEAR(result.slope, 10'000, 100);  // 18,000 between the two nearest.
  EXPECT_NEAR(result.intercept, kHeld, 20'000);
}

TEST(BatchSearch, TheGradientsOfASmallSizeDoNotMakeTheLineTooFlat) {
  for (const std::int64_t gradients : {500'000, 2'000'000, 6'000'000}) {
    Machine machine;
    machine.kept = [](std::int64_t n) { return kHeld + 40'000 * n; };
    machine.peak = [=](std::int64_t n) { return kHeld + std::max(40'000 * n, gradients + 1'000 * n); };
    machine.bounds.limit = kHeld + 8'000'000;
    const SearchResult result = machine.search();
    EXPECT_LE(result.largest, machine.exhaustive()) << gradients;
    EXPECT_GE(result.largest * 20, machine.exhaustive() * 19) << gradients;
    EXPECT_EQ(failures(result), 0);
    EXPECT_LE(result.probes.size(), 4U);
  }
}

TEST(BatchSearch, FindsTheLastFullBucketInFourProbes) {
  Machine machine;
  machine.peak = [](std::int64_t n) { return kHeld + (n + 63) / 64 * 64 * 10'000; };
  machine.kept = machine.peak;
  machine.bounds.limit = kHeld + 3'400'000;
  const SearchResult result = machine.search();
  EXPECT_EQ(machine.exhaustive(), 320);
  EXPECT_EQ(result.largest, 320);
  EXPECT_EQ(result.batch_size, 320);
  EXPECT_LE(result.probes.size(), 4U);
  EXPECT_EQ(failures(result), 0);
  EXPECT_THAT(result.reason, HasSubstr("not lie on one line"));
}

TEST(BatchSearch, ComesNearTheLastFullBucketWhereverTheLimitLies) {
  for (const std::int64_t bucket : {48, 64}) {
    for (std::int64_t buckets = 3; buckets <= 6; ++buckets) {
      Machine machine;
      machine.peak = [=](std::int64_t n) { return kHeld + 400'000 + (n + bucket - 1) / bucket * bucket * 10'000; };
      machine.kept = [=](std::int64_t n) { return machine.peak(n) - 400'000; };
      machine.bounds.limit = machine.peak(buckets * bucket) + bucket * 5'000;
      const SearchResult result = machine.search();
      EXPECT_EQ(machine.exhaustive(), buckets * bucket);
      EXPECT_LE(machine.peak(result.largest), machine.bounds.limit) << bucket << " " << buckets;
      EXPECT_GE(10 * result.largest, 9 * machine.exhaustive()) << bucket << " " << buckets;
      EXPECT_LE(result.probes.size(), 4U) << bucket << " " << buckets;
      EXPECT_EQ(failures(result), 0) << bucket << " " << buckets;
    }
  }
}

TEST(BatchSearch, BehindAStepAnywhereItIsNeverTooLarge) {
  for (std::int64_t step = 20; step <= 400; step += 7) {
    for (const std::int64_t jump : {300'000, 900'000, 2'500'000}) {
      Machine machine;
      machine.peak = [=](std::int64_t n) { return kHeld + 100'000 + 10'000 * n + (n >= step ? jump : 0); };
      machine.kept = [](std::int64_t n) { return kHeld + 10'000 * n; };
      machine.bounds.limit = kHeld + 3'000'000;
      const SearchResult result = machine.search();
      ASSERT_GT(result.largest, 0) << step << " " << jump;
      EXPECT_LE(machine.peak(result.largest), machine.bounds.limit) << step << " " << jump;
      EXPECT_LE(result.probes.size() - static_cast<std::size_t>(failures(result)), 4U) << step << " " << jump;
    }
  }
}

TEST(BatchSearch, WhatRunsOutIsSurvivedAndASmallerSizeTried) {
  Machine machine = line(100'000, 100'000, kHeld + 1'250'000);
  const SearchResult result = machine.search();
  EXPECT_EQ(machine.exhaustive(), 11);
  EXPECT_EQ(result.largest, 11);
  EXPECT_EQ(sizes_of(result).front(), 32);
  EXPECT_TRUE(result.probes.front().ran_out);
  EXPECT_EQ(failures(result), 1);
  EXPECT_LE(result.probes.size(), 4U);
}

TEST(BatchSearch, WithoutRoomForOneSampleThereIsNoSize) {
  const SearchResult result = line(0, 1'000'000, kHeld + 500'000).search();
  EXPECT_EQ(result.batch_size, 0);
  EXPECT_THAT(sizes_of(result), ElementsAre(32, 8, 2, 1));
}

TEST(BatchSearch, TriesNothingAboveTheLargestAllowed) {
  Machine machine = line(0, 1'000, kHeld + 1'000'000'000);
  const SearchResult result = machine.search();
  EXPECT_EQ(result.batch_size, 512);
  EXPECT_THAT(sizes_of(result), ElementsAre(32, 512));
  EXPECT_THAT(result.reason, HasSubstr("may be tried"));
  machine.bounds.max = 32;
  EXPECT_THAT(sizes_of(machine.search()), ElementsAre(32));
}

TEST(BatchSearch, MicroBatchesAreEqualOrAsFewAsCanBe) {
  const auto of = [](std::int64_t samples, std::int64_t largest) {
    const MicroBatches found = micro_batches_of(samples, largest);
    return std::pair(found.size, found.count);
  };
  EXPECT_EQ(of(480, 190), std::pair(160L, 3L));
  EXPECT_EQ(of(320, 512), std::pair(320L, 1L));
  EXPECT_EQ(of(12, 6), std::pair(6L, 2L));
  EXPECT_EQ(of(63, 40), std::pair(21L, 3L));
  EXPECT_EQ(of(5, 3), std::pair(3L, 2L));
  EXPECT_EQ(of(14, 5), std::pair(5L, 3L));
  EXPECT_EQ(of(21, 15), std::pair(11L, 2L));
  EXPECT_EQ(of(7, 1), std::pair(1L, 7L));
  for (std::int64_t samples = 1; samples <= 60; ++samples) {
    for (std::int64_t largest = 1; largest <= 70; ++largest) {
      const auto [size, count] = of(samples, largest);
      EXPECT_LE(size, largest);
      EXPECT_GE(2 * size, std::min(samples, largest)) << samples << " " << largest;
      EXPECT_GE(size * count, samples);
      EXPECT_LT(size * (count - 1), samples);
    }
  }
}

TEST(BatchSearch, TheMachinesLimitLeavesRoomForTheCopiesOfTheSearch) {
  EXPECT_EQ(limit_of_machine(1'000, 10'000, 500), 10'000);
  EXPECT_EQ(limit_of_machine(1'000, 10'000, 3'000), 8'000);
}

TEST(BatchSearch, StopsAtTheFirstSizeThatMeetsTheTarget) {
  Machine machine = line(0, 10'000, kHeld + 4'000'000);
  machine.bounds.target = 99;  // Each size has 100 samples/s.
  const SearchResult result = machine.search();
  EXPECT_THAT(sizes_of(result), ElementsAre(32));
  EXPECT_EQ(result.batch_size, 32);
}

TEST(BatchSearch, FindsTheFewestSamplesThatMeetTheTarget) {
  Machine machine = line(0, 10'000, kHeld + 4'000'000);
  machine.seconds = [](std::int64_t n) { return 1 + 0.01 * static_cast<double>(n); };
  machine.bounds.target = 50;  // 100 / (1 + 1).
  const SearchResult result = machine.search();
  EXPECT_GE(result.batch_size, 100);
  EXPECT_LE(result.batch_size, 101);
  EXPECT_EQ(result.probes.size(), 3U);
  machine.bounds.target = 1'000;
  const SearchResult missed = machine.search();
  EXPECT_EQ(missed.batch_size, 400);
  EXPECT_THAT(missed.reason, HasSubstr("no size has 1000 samples/s"));
}

TEST(BatchSearch, ASmallerSizeIsTakenWhereItIsFasterByMoreThanChance) {
  Machine machine = line(0, 10'000, kHeld + 4'000'000);
  machine.seconds = [](std::int64_t n) { return (n > 150 ? 0.013 : 0.01) * static_cast<double>(n); };
  const SearchResult result = machine.search();
  EXPECT_EQ(result.largest, 400);
  EXPECT_EQ(result.batch_size, 32);
  EXPECT_THAT(result.reason, HasSubstr("30 % faster than 400"));
  machine.spread_s = 1;
  EXPECT_EQ(machine.search().batch_size, 400);  // 32 in 0.32 to 1.32 s.
  machine.spread_s = 0;
  machine.seconds = [](std::int64_t n) { return (n > 150 ? 0.0104 : 0.01) * static_cast<double>(n); };
  EXPECT_EQ(machine.search().batch_size, 400);
}

}  // namespace
}  // namespace headrace
