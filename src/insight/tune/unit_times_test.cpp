#include "insight/tune/unit_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace headrace {
namespace {

TEST(UnitTimes, WhatIsNoTimeOrDoesNotCountIsNotCounted) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(is_counted({.seconds = 0.1}));
  EXPECT_FALSE(is_counted({.seconds = 0.1, .countable = false, .why_not = "evaluation"}));
  for (const double seconds : {0.0, -1.0, nan, infinity}) EXPECT_FALSE(is_counted({.seconds = seconds}));
  for (const double work : {0.0, -1.0, nan, infinity}) EXPECT_FALSE(is_counted({.seconds = 0.1, .work = work}));
  EXPECT_FALSE(is_counted({.seconds = 0.1, .wait_s = nan}));
}

TEST(UnitTimes, ALineThroughUnitsOfDifferentWorkIsNotMovedByBursts) {
  UnitTimes times;
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < 48; ++i) {
    const double work = 100 + 400 * uniform(random);
    times.add((0.02 + 2e-4 * work) * (i % 5 == 0 ? 3 : 1), work);
  }
  for (const double work : {100.0, 250.0, 500.0, 800.0}) {
    EXPECT_NEAR(times.expected(work), 0.02 + 2e-4 * work, 0.02 * times.expected(work)) << work;
  }
}

TEST(UnitTimes, WhereWorkDoesNotVaryItIsTheMiddle) {
  UnitTimes times;
  EXPECT_FALSE(times.is_known());
  for (const double seconds : {0.10, 0.11, 0.12, 5.0, 0.11}) times.add(seconds, 64);
  EXPECT_TRUE(times.is_known());
  EXPECT_DOUBLE_EQ(times.expected(64), 0.11);
  EXPECT_DOUBLE_EQ(times.expected(640), 0.11);
  EXPECT_DOUBLE_EQ(times.typical(), 0.11);
}

TEST(UnitTimes, AMachineThatBecomesSlowerIsFollowedWithinADozenUnits) {
  UnitTimes times;
  for (int i = 0; i < 200; ++i) times.add(0.1, 1);
  for (int i = 0; i < 12; ++i) times.add(0.3, 1);
  EXPECT_DOUBLE_EQ(times.expected(1), 0.3);
}

TEST(UnitTimes, MoreWorkNeverTakesLessTimeAndNoneTakesNoTime) {
  UnitTimes falling;
  for (int i = 0; i < 40; ++i) falling.add(1 - 0.01 * i, 1 + i);
  EXPECT_DOUBLE_EQ(falling.expected(1), falling.expected(1000));
  UnitTimes steep;
  for (int i = 0; i < 40; ++i) steep.add(0.1 * i + 0.01, 10 + i);  // Crosses 0 at a work of 9.9.
  EXPECT_GT(steep.expected(0.001), 0);
}

TEST(UnitTimes, WhatUnitsWaitForDataIsAMeanThatNoStallMovesMuch) {
  UnitTimes times;
  for (int i = 0; i < 48; ++i) {  // Four workers hand out a batch each at once.
    const double wait_s = i % 4 == 0 ? 0.12 : 0;
    times.add(0.01 + wait_s, 1, wait_s);
  }
  EXPECT_NEAR(times.expected(1), 0.04, 1e-9);
  EXPECT_NEAR(times.typical(), 0.04, 1e-9);
  EXPECT_NEAR(times.wait_s(), 0.03, 1e-9);
  times.add(9.01, 1, 9);
  EXPECT_LT(times.expected(1), 0.05);
}

TEST(LiveBaseline, LeavesOutTheFirstUnitsAndThoseThatDoNotCount) {
  LiveBaseline baseline;
  EXPECT_FALSE(baseline.add({.seconds = 9}));
  EXPECT_FALSE(baseline.add({.seconds = 0.5, .countable = false}));
  EXPECT_FALSE(baseline.add({.seconds = 0.4}));
  EXPECT_TRUE(baseline.add({.seconds = 0.1, .wait_s = 0.05}));
  EXPECT_TRUE(baseline.add({.seconds = 0.1, .wait_s = 0.01}));
  EXPECT_DOUBLE_EQ(baseline.wait_share(), 0.3);
}

TEST(LiveBaseline, IsEnoughAtTwentyBlocksOrEightThatTookFiveSeconds) {
  const auto units_of = [](double seconds) {
    LiveBaseline baseline;
    int units = 0;
    while (!baseline.is_enough()) {
      baseline.add({.seconds = seconds});
      ++units;
    }
    return units - static_cast<int>(kFirstUnits);
  };
  EXPECT_EQ(units_of(0.1), 20);
  EXPECT_EQ(units_of(0.5), 10);
  EXPECT_EQ(units_of(2.0), 8);
  EXPECT_NEAR(units_of(0.001), 400, 1);  // Blocks of 20 ms.
}

TEST(LiveBaseline, BlocksAreAsLongAsIfAllUnitsHadTypicalWork) {
  LiveBaseline baseline;
  UnitTimes times;
  for (int i = 0; i < 42; ++i) {
    const double work = i % 2 == 0 ? 100 : 300;
    const LiveUnit unit{.seconds = 0.001 * work, .work = work};
    if (baseline.add(unit)) times.add(unit.seconds, unit.work);
  }
  const auto blocks = baseline.blocks(times, 4);
  ASSERT_EQ(blocks.size(), 10u);
  for (const double block_s : blocks) EXPECT_NEAR(block_s, blocks.front(), 1e-9);
}

TEST(LiveBaseline, BlocksThatWaitAlikeShowWhatTheRestOfTheLoopScatters) {
  LiveBaseline baseline;
  UnitTimes times;
  for (int i = 0; i < 26; ++i) {
    const LiveUnit unit{.seconds = i % 2 == 0 ? 0.17 : 0.03, .wait_s = i % 2 == 0 ? 0.14 : 0};
    if (baseline.add(unit)) times.add(unit.seconds, unit.work, unit.wait_s);
  }
  const auto uneven = baseline.blocks(times, 1), even = baseline.blocks(times, 1, /*even_waiting=*/true);
  EXPECT_GT(uneven[0], 4 * uneven[1]);
  for (const double block_s : even) EXPECT_NEAR(block_s, even.front(), 1e-9);
}

}  // namespace
}  // namespace headrace
