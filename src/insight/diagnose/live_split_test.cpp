#include "insight/diagnose/live_split.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TraceRecord record_of(const std::vector<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>>& spans) {
  TraceRecord record;
  record.threads = {"main"};
  for (const auto& [name, times] : spans) {
    record.events.push_back(
        {static_cast<std::uint32_t>(record.names.size()), 0, times.first, times.second, /*value=*/0});
    record.names.push_back({name, "step"});
  }
  record.duration_ns = 10'000'000;
  return record;
}

TEST(SplitFigures, AreSecondsAStepAndWhatNoPartCovers) {
  const auto figures = split_figures(
      record_of({{"step", {0, 1'000'000}}, {"data_wait", {0, 250'000}}, {"forward", {250'000, 750'000}}}));
  EXPECT_DOUBLE_EQ(figures.at("time.data_wait_s"), 0.25e-3);
  EXPECT_DOUBLE_EQ(figures.at("time.forward_s"), 0.5e-3);
  EXPECT_DOUBLE_EQ(figures.at("time.backward_s"), 0);
  EXPECT_DOUBLE_EQ(figures.at("time.other_s"), 0.25e-3);
}

TEST(SplitFigures, ThereAreNoneWithoutAWholeStepOrWhereEventsWereLost) {
  EXPECT_TRUE(split_figures({}).empty());
  EXPECT_TRUE(split_figures(record_of({{"forward", {0, 100}}})).empty());
  TraceRecord lost = record_of({{"step", {0, 1'000'000}}});
  lost.dropped = 1;
  EXPECT_TRUE(split_figures(lost).empty());
}

TEST(SplitTime, IsASecondOrTwoHundredStepsAndFourAtLeast) {
  EXPECT_EQ(split_time_ns(1'000'000), 200'000'000);
  EXPECT_EQ(split_time_ns(100'000'000), 1'000'000'000);
  EXPECT_EQ(split_time_ns(2'000'000'000), 8'000'000'000);
}

}  // namespace
}  // namespace headrace
