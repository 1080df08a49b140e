#include "core/memory/trend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/base/random.h"

namespace headrace {
namespace {

constexpr std::int64_t kMegabyte = 1'000'000;

// 340 MB with 2 % of noise, even over +-2 %.
std::vector<std::int64_t> flat(std::int64_t size, std::uint64_t seed) {
  SampleRandom random{seed, 0, 0};
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < size; ++i) {
    values.push_back(static_cast<std::int64_t>(340e6 * (1 + 0.02 * (2 * random.uniform() - 1))));
  }
  return values;
}

TEST(MemoryTrend, LeakOfOneMegabyteAStepIsFoundWithin200Steps) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<std::int64_t> values = flat(200, seed);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<std::int64_t>(i) * kMegabyte;
    const MemoryTrend trend = memory_trend(values, 20);
    EXPECT_EQ(trend.trend, Trend::increasing) << seed;
    EXPECT_NEAR(trend.bytes_per_value, 1e6, 0.15e6) << seed;
    EXPECT_EQ(trend.windows, 9);
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(memory_trend(values, 20).trend, Trend::decreasing) << seed;
  }
}

TEST(MemoryTrend, NoiseAloneIsStable) {
  int alarms = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const Trend trend = memory_trend(flat(200, seed), 20).trend;
    alarms += trend != Trend::stable;
  }
  EXPECT_LE(alarms, 20);  // Five in a thousand on either side.
}

TEST(MemoryTrend, SawToothIsStableThoughItsValuesRiseMostOfTheTime) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 200; ++i) values.push_back(340 * kMegabyte + i % 20 * 10 * kMegabyte);
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::stable);
  for (std::size_t i = 0; i < values.size(); ++i) {  // The teeth are not as long as the windows.
    values[i] = 340 * kMegabyte + static_cast<std::int64_t>(i) % 7 * 10 * kMegabyte;
  }
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::stable);
}

TEST(MemoryTrend, CacheThatFillsAndThenLevelsOffIsNoLeak) {
  for (const std::int64_t full_after : {10, 40, 70, 100}) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < 200; ++i) {
      values.push_back(340 * kMegabyte + std::min(i, full_after) * 5 * kMegabyte);
    }
    EXPECT_EQ(memory_trend(values, 20).trend, Trend::stable) << full_after;
  }
}

TEST(MemoryTrend, GrowthOfLessThanAMegabyteIsNotWorthAWord) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 200; ++i) values.push_back(340 * kMegabyte + i * 4096);
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::stable);
}

TEST(MemoryTrend, NeedsSixWindowsAfterTheFirst) {
  std::vector<std::int64_t> values;
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::insufficient_data);
  for (std::int64_t i = 0; i < 139; ++i) values.push_back(i * kMegabyte);
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::insufficient_data);
  EXPECT_EQ(memory_trend(values, 20).bytes_per_value, 0);
  values.push_back(139 * kMegabyte);
  EXPECT_EQ(memory_trend(values, 20).trend, Trend::increasing);
  EXPECT_NEAR(memory_trend(values, 20).bytes_per_value, 1e6, 1);
}

TEST(MemoryTrend, LongHistoriesAreJudgedInAtMost200Windows) {
  std::vector<std::int64_t> values(1'000'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  const MemoryTrend trend = memory_trend(values, 1);
  EXPECT_EQ(trend.windows, 199);
  EXPECT_EQ(trend.trend, Trend::stable);  // One megabyte and not more.
  for (std::int64_t& value : values) value *= 3;
  EXPECT_EQ(memory_trend(values, 1).trend, Trend::increasing);
  EXPECT_NEAR(memory_trend(values, 1).bytes_per_value, 3, 1e-9);
  EXPECT_EQ(memory_trend(values, 7'000'000).trend, Trend::insufficient_data);
}

TEST(MemoryTrend, HasTheNamesOfTheTrendsReports) {
  EXPECT_STREQ(to_string(Trend::increasing), "increasing");
  EXPECT_STREQ(to_string(Trend::decreasing), "decreasing");
  EXPECT_STREQ(to_string(Trend::stable), "stable");
  EXPECT_STREQ(to_string(Trend::insufficient_data), "insufficient_data");
}

}  // namespace
}  // namespace headrace
