#include "app/cli/live_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using testing::ElementsAre;

TEST(LiveView, HasTheWordsOfThePythonView) {  // tests/monitor_test.py has the same figures.
  EXPECT_THAT(live_lines({20, 100, 2.0}, {{"samples_per_s", 64},
                                          {"time.forward_s", 0.03},
                                          {"time.data_wait_s", 0.01},
                                          {"loader.queue_depth", 3},
                                          {"process.resident_bytes", 2.5e9},
                                          {"cache.hit_rate", 0.875}}),
              ElementsAre("step 20 of 100; rate 2.00 steps/s, 64 samples/s; time left 0:40",
                          "time split data_wait 25%, forward 75%", "queues loader.queue_depth 3",
                          "memory 2.50 GB; cache hit rate 87.5%"));
}

TEST(LiveView, WhatNobodyKnowsIsUnavailable) {
  EXPECT_THAT(live_lines({}, {}),
              ElementsAre("step unavailable; rate unavailable; time left unavailable", "time split unavailable",
                          "queues unavailable", "memory unavailable; cache hit rate unavailable"));
  EXPECT_EQ(live_lines({3, std::nullopt, 2.0}, {})[0], "step 3; rate 2.00 steps/s; time left unavailable");
  EXPECT_EQ(live_lines({3, 10, 0.0}, {})[0], "step 3 of 10; rate 0.00 steps/s; time left unavailable");
  EXPECT_EQ(live_lines({}, {{"time.other_s", 0.0}})[1], "time split unavailable");
}

TEST(LiveView, AHitRateOf0AndAnEmptyQueueAreFigures) {
  const auto lines = live_lines({}, {{"cache.hit_rate", 0}, {"loader.queue_depth", 0}, {"process.resident_bytes", 12}});
  EXPECT_EQ(lines[2], "queues loader.queue_depth 0");
  EXPECT_EQ(lines[3], "memory 12 bytes; cache hit rate 0.0%");
}

TEST(LiveView, TimeLeftIsInMinutesOrHoursAndNeverBelow0) {
  EXPECT_THAT(live_lines({0, 7325, 1.0}, {})[0], testing::HasSubstr("time left 2:02:05"));
  EXPECT_THAT(live_lines({0, 3599, 1.0}, {})[0], testing::HasSubstr("time left 59:59"));
  EXPECT_THAT(live_lines({12, 10, 1.0}, {})[0], testing::HasSubstr("time left 0:00"));
}

}  // namespace
}  // namespace headrace
