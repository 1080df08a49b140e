#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/step_waterfall.h>

#include <cmath>
#include <string>
#include <vector>

#include "insight/diagnose/sample_trace.h"

namespace headrace {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kMillisecond = 1'000'000;

std::int64_t ms(double seconds) {
  return std::llround(1e3 * seconds);
}

// "main  aten::add [2, 3]": indented by its depth, with its bars in ms.
std::vector<std::string> lines_of(const StepWaterfall& waterfall) {
  std::vector<std::string> lines;
  for (const StepWaterfall::Row& row : waterfall.rows) {
    std::string line = row.thread + ' ' + std::string(2 * row.depth, ' ') + row.name;
    for (const StepWaterfall::Bar& bar : row.bars) {
      line += " [" + std::to_string(ms(bar.begin_s)) + ", " + std::to_string(ms(bar.end_s)) + ']';
    }
    lines.push_back(line);
  }
  return lines;
}

TEST(StepWaterfall, ShowsWhenEachSpanOfTheMiddleStepRanOnEveryThread) {
  const StepWaterfall waterfall = step_waterfall(sample_trace(5));
  EXPECT_EQ(waterfall.step, 3);  // 20, 21, 22, 23, 24 ms.
  EXPECT_EQ(waterfall.steps, 5);
  EXPECT_EQ(ms(waterfall.length_s), 22);
  EXPECT_THAT(lines_of(waterfall),
              ElementsAre("main data_wait [0, 2]", "main forward [2, 7]", "main   aten::add [2, 3]",
                          "main   aten::linear [4, 7]", "main     aten::addmm [5, 7]", "main backward [7, 15]",
                          "main optimizer [15, 21]", "loader 0 read [1, 7]", "loader 0 wait for room [8, 18]"));
  EXPECT_TRUE(waterfall.rows.front().is_own_thread);
  EXPECT_FALSE(waterfall.rows.back().is_own_thread);
  EXPECT_EQ(waterfall.rows_left_out, 0);
}

TEST(StepWaterfall, LeavesOutWarmUpAndCountsFromTheFirstThatIsLookedAt) {
  const StepWaterfall waterfall = step_waterfall(sample_trace(10), 7);  // 22, 23, 24 ms.
  EXPECT_EQ(waterfall.steps, 3);
  EXPECT_EQ(waterfall.step, 2);
  EXPECT_EQ(ms(waterfall.length_s), 23);
}

TEST(StepWaterfall, OfAnEvenNumberTheLongerOfTheMiddleOnesIsTaken) {
  EXPECT_EQ(ms(step_waterfall(sample_trace(4)).length_s), 22);
  EXPECT_EQ(ms(step_waterfall(sample_trace(1)).length_s), 20);
}

TEST(StepWaterfall, CutsWhatReachesBeyondTheStep) {
  TraceRecord record = sample_trace(1);
  record.threads.push_back("long");
  record.names.push_back({"all along", "work"});
  const auto all_along = static_cast<std::uint32_t>(record.names.size() - 1);
  for (TraceEvent& event : record.events) event.begin_ns += kMillisecond, event.end_ns += kMillisecond;
  record.events.insert(record.events.begin(), {all_along, 2, 0, 90 * kMillisecond, 0});
  EXPECT_THAT(lines_of(step_waterfall(record)).back(), "long all along [0, 20]");
}

TEST(StepWaterfall, SpansOfOneNameAreOneRowWhoseBarsJoinWhereNobodyCouldTellThemApart) {
  TraceRecord record;
  record.names = {{"step", "step"}, {"often", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 100 * kMillisecond, 0}};
  for (std::int64_t i = 0; i < 1000; ++i) {
    record.events.push_back({1, 0, i * 50'000, i * 50'000 + 20'000, 0});  // Gaps of 0.03 % of the step.
  }
  record.events.push_back({1, 0, 80 * kMillisecond, 90 * kMillisecond, 0});
  const StepWaterfall waterfall = step_waterfall(record);
  ASSERT_EQ(waterfall.rows.size(), 1U);
  EXPECT_EQ(waterfall.rows[0].calls, 1001);
  EXPECT_NEAR(waterfall.rows[0].total_s, 0.030, 1e-9);
  EXPECT_THAT(lines_of(waterfall), ElementsAre("main often [0, 50] [80, 90]"));
}

TEST(StepWaterfall, KeepsToItsLimitsAndCountsWhatItLeavesOut) {
  const StepWaterfall waterfall = step_waterfall(sample_trace(5), 0, {.depth_max = 1, .rows_max = 4, .bars_max = 600});
  EXPECT_THAT(lines_of(waterfall), ElementsAre("main backward [7, 15]", "main optimizer [15, 21]",
                                               "loader 0 read [1, 7]", "loader 0 wait for room [8, 18]"));
  EXPECT_EQ(waterfall.rows_left_out, 2);  // The wait for data and forward; operators are deeper.

  TraceRecord record;
  record.names = {{"step", "step"}, {"often", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 100 * kMillisecond, 0}};
  for (std::int64_t i = 0; i < 50; ++i) {
    record.events.push_back({1, 0, 2 * i * kMillisecond, (2 * i + 1) * kMillisecond, 0});
  }
  EXPECT_EQ(step_waterfall(record).rows[0].bars.size(), 50U);
  EXPECT_LE(step_waterfall(record, 0, {.bars_max = 10}).rows[0].bars.size(), 10U);
}

TEST(StepWaterfall, AStepWithNothingInItHasNoRowAndARecordWithoutStepsIsAnError) {
  TraceRecord record;
  record.names = {{"step", "step"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, kMillisecond, 0}};
  EXPECT_TRUE(step_waterfall(record).rows.empty());
  EXPECT_THROW(step_waterfall(record, 1), Error);
  EXPECT_THROW(step_waterfall(record, -1), Error);
  EXPECT_THROW(step_waterfall({}), Error);
}

}  // namespace
}  // namespace headrace
