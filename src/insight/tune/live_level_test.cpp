#include "insight/tune/live_level.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

// How often `units` units of so many seconds each end a window at another level.
int shifts(LiveLevel& level, double seconds, int units) {
  int count = 0;
  for (int i = 0; i < units; ++i) count += level.add(seconds);
  return count;
}

TEST(LiveLevel, AnotherLevelIsNoticedOnce) {
  LiveLevel level;
  EXPECT_EQ(shifts(level, 0.1, 200), 0);
  EXPECT_EQ(shifts(level, 0.16, 200), 1);
  EXPECT_EQ(shifts(level, 0.1, 200), 1);
}

TEST(LiveLevel, WithinTwoWindowsOfIt) {
  LiveLevel level;
  shifts(level, 0.1, 130);  // 30 of the third window.
  EXPECT_EQ(shifts(level, 0.2, 20), 0);
  EXPECT_EQ(shifts(level, 0.2, 50), 1);
}

TEST(LiveLevel, NeitherASmallerStepNorABurstIsOne) {
  LiveLevel level;
  shifts(level, 0.1, 100);
  EXPECT_EQ(shifts(level, 0.14, 200), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(shifts(level, 3, 20) + shifts(level, 0.12, 30), 0);
}

TEST(LiveLevel, ManySmallStepsAreOne) {
  LiveLevel level;
  int count = 0;
  for (double seconds = 0.1; seconds < 0.16; seconds *= 1.05) count += shifts(level, seconds, 50);
  EXPECT_EQ(count, 1);
}

TEST(LiveLevel, OfShortUnitsAWindowIsASecond) {
  LiveLevel level;
  shifts(level, 0.001, 3000);
  EXPECT_EQ(shifts(level, 0.01, 50), 0);  // Half a second.
  EXPECT_EQ(shifts(level, 0.001, 3000), 0);
  EXPECT_EQ(shifts(level, 0.01, 300), 1);
}

}  // namespace
}  // namespace headrace
