#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/profile_summary.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "insight/diagnose/json.h"

namespace headrace {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::uint32_t kStepName = 0, kWaitName = 1, kTransferName = 2, kForwardName = 3, kBackwardName = 4,
                        kOptimizerName = 5, kForeignForward = 6, kGaugeName = 7;

TraceRecord empty_record(std::size_t threads = 1) {
  TraceRecord record;
  record.names = {{"step", "step"},     {"data_wait", "step"}, {"transfer", "step"}, {"forward", "step"},
                  {"backward", "step"}, {"optimizer", "step"}, {"forward", "work"},  {"queue", "mark"}};
  for (std::size_t i = 0; i < threads; ++i) record.threads.push_back("thread " + std::to_string(i));
  return record;
}

// Times in milliseconds.
void add(TraceRecord& record, std::uint32_t name, std::int64_t begin, std::int64_t end, std::uint32_t thread = 0) {
  record.events.push_back({name, thread, begin * kMillisecond, end * kMillisecond, 0});
}

// A step of 100 ms from `begin` with 2, 3, 20, 40 and 10 ms in its parts, and 25 in none.
void add_step(TraceRecord& record, std::int64_t begin, std::uint32_t thread = 0) {
  add(record, kStepName, begin, begin + 100, thread);
  add(record, kWaitName, begin, begin + 2, thread);
  add(record, kTransferName, begin + 5, begin + 8, thread);
  add(record, kForwardName, begin + 10, begin + 30, thread);
  add(record, kBackwardName, begin + 35, begin + 75, thread);
  add(record, kOptimizerName, begin + 80, begin + 90, thread);
}

// As the split's seconds are whole milliseconds here, they can be compared without tolerance.
std::int64_t ms(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e3 + 0.5);
}

std::vector<std::int64_t> parts_ms(const TimeSplit& split) {
  return {ms(split.data_wait_s), ms(split.transfer_s),  ms(split.forward_s),
          ms(split.backward_s),  ms(split.optimizer_s), ms(split.other_s)};
}

using testing::ElementsAre;

TEST(TimeSplit, DividesAStepByItsParts) {
  TraceRecord record = empty_record();
  add_step(record, 0);
  add_step(record, 200);
  const TimeSplit split = split_time(record);
  EXPECT_EQ(split.steps, 2);
  EXPECT_EQ(ms(split.total_s), 200);
  EXPECT_THAT(parts_ms(split), ElementsAre(4, 6, 40, 80, 20, 50));
  ASSERT_EQ(split.parts.size(), 2U);
  EXPECT_EQ(ms(split.parts[1].backward_s), 40);
  EXPECT_THAT(split.step_s, ElementsAre(testing::DoubleEq(0.1), testing::DoubleEq(0.1)));
  EXPECT_THAT(split.end_ns, ElementsAre(100 * kMillisecond, 300 * kMillisecond));
}

TEST(TimeSplit, FiveMillisecondsPlantedInAPartAppearInThatPartAlone) {
  TraceRecord plain = empty_record();
  add_step(plain, 0);
  const std::vector<std::int64_t> before = parts_ms(split_time(plain));
  for (std::uint32_t part = kWaitName; part <= kOptimizerName; ++part) {
    TraceRecord record = plain;
    // Everything after the part's end moves by 5 ms, and so do the ends of what holds it.
    const std::int64_t planted_at =
        std::find_if(record.events.begin(), record.events.end(), [&](const auto& e) { return e.name == part; })->end_ns;
    for (TraceEvent& event : record.events) {
      if (event.begin_ns >= planted_at) event.begin_ns += 5 * kMillisecond;
      if (event.end_ns >= planted_at) event.end_ns += 5 * kMillisecond;
    }
    std::vector<std::int64_t> expected = before;
    expected[part - kWaitName] += 5;
    EXPECT_EQ(parts_ms(split_time(record)), expected) << record.names[part].text;
  }
}

TEST(TimeSplit, LeavesOutTheWarmUpSteps) {
  TraceRecord record = empty_record();
  add(record, kStepName, 0, 1000);
  add_step(record, 2000);
  const TimeSplit split = split_time(record, 1);
  EXPECT_EQ(split.steps, 1);
  EXPECT_EQ(ms(split.total_s), 100);
}

TEST(TimeSplit, CountsAPartOnlyForTheStepThatHoldsItOnTheSameThread) {
  TraceRecord record = empty_record(2);
  add(record, kStepName, 100, 200);
  add(record, kForwardName, 90, 110);        // Begins before the step.
  add(record, kBackwardName, 190, 210);      // Ends after it.
  add(record, kTransferName, 220, 230);      // In no step.
  add(record, kOptimizerName, 120, 130, 1);  // On a thread without a step.
  record.events.push_back({kForeignForward, 0, 130 * kMillisecond, 150 * kMillisecond, 0});  // Of another category.
  EXPECT_THAT(parts_ms(split_time(record)), ElementsAre(0, 0, 0, 0, 0, 100));
}

TEST(TimeSplit, AddsUpStepsOfSeveralThreads) {
  TraceRecord record = empty_record(3);
  add_step(record, 0, 0);
  add_step(record, 50, 2);  // While the other one runs.
  const TimeSplit split = split_time(record);
  EXPECT_EQ(split.steps, 2);
  EXPECT_THAT(parts_ms(split), ElementsAre(4, 6, 40, 80, 20, 50));
}

TEST(TimeSplit, CountsNoMomentTwiceWherePartsNestOrOverlap) {
  TraceRecord record = empty_record();
  add(record, kStepName, 0, 100);
  add(record, kForwardName, 10, 50);
  add(record, kTransferName, 20, 30);  // Nested: the forward pass has this time.
  add(record, kBackwardName, 40, 70);  // Overlaps by 10 ms.
  EXPECT_THAT(parts_ms(split_time(record)), ElementsAre(0, 0, 40, 20, 0, 40));
}

TEST(TimeSplit, TakesTheOuterOfTwoNestedSteps) {
  TraceRecord record = empty_record();
  add(record, kStepName, 0, 100);
  add(record, kStepName, 20, 60);
  add(record, kForwardName, 70, 90);
  const TimeSplit split = split_time(record);
  EXPECT_EQ(split.steps, 1);
  EXPECT_THAT(parts_ms(split), ElementsAre(0, 0, 20, 0, 0, 80));
}

TEST(TimeSplit, FindsThePartThatFillsItsWholeStepWhateverTheOrderOfEvents) {
  TraceRecord record = empty_record();
  add(record, kForwardName, 0, 100);
  add(record, kStepName, 0, 100);
  EXPECT_THAT(parts_ms(split_time(record)), ElementsAre(0, 0, 100, 0, 0, 0));
}

TEST(TimeSplit, LeavesOutAStepWhosePartsTheRingMayHaveOverwritten) {
  TraceRecord whole = empty_record();
  for (int i = 0; i < 4; ++i) add_step(whole, 200 * i);
  // A ring drops in the order of ends; try every number of dropped events.
  std::vector<TraceEvent> by_end = whole.events;
  std::stable_sort(by_end.begin(), by_end.end(), [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
  for (std::size_t dropped = 1; dropped <= 12; ++dropped) {
    TraceRecord record = whole;
    record.events.assign(by_end.begin() + static_cast<std::ptrdiff_t>(dropped), by_end.end());
    record.dropped = static_cast<std::int64_t>(dropped);
    const TimeSplit split = split_time(record);
    // The first step that is left counts only if nothing of it can be missing.
    EXPECT_EQ(split.steps, dropped < 6 ? 3 : dropped < 12 ? 2 : 1) << dropped;
    EXPECT_EQ(ms(split.backward_s), 40 * split.steps) << dropped;
    EXPECT_EQ(ms(split.other_s), 25 * split.steps) << dropped;
  }
}

TEST(TimeSplit, RefusesARecordWithoutWholeSteps) {
  TraceRecord record = empty_record();
  add(record, kForwardName, 0, 10);
  EXPECT_THROW(split_time(record), Error);
  add_step(record, 100);
  EXPECT_NO_THROW(split_time(record));
  EXPECT_THROW(split_time(record, 1), Error);
  EXPECT_THROW(split_time(record, -1), Error);
}

TEST(TimeSplit, RefusesARecordThatContradictsItself) {
  TraceRecord record = empty_record();
  add_step(record, 0);
  for (const TraceEvent& bad : {TraceEvent{99, 0, 0, 1, 0}, TraceEvent{0, 99, 0, 1, 0}, TraceEvent{0, 0, 5, 1, 0}}) {
    TraceRecord broken = record;
    broken.events.push_back(bad);
    try {
      split_time(broken);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    }
  }
}

TEST(TimeSplit, JsonHoldsSecondsAndShares) {
  TraceRecord record = empty_record();
  add_step(record, 0);
  const nlohmann::ordered_json json = to_json(split_time(record));
  EXPECT_EQ(json["steps"], 1);
  EXPECT_DOUBLE_EQ(json["backward_s"], 0.04);
  EXPECT_DOUBLE_EQ(json["share"]["backward"], 0.4);
  EXPECT_EQ(json["step_s"].size(), 1U);
  EXPECT_TRUE(to_json(TimeSplit{})["share"]["other"].is_null());
}

TEST(MetricSeries, HoldsOneValueAStepUnderTheNamesOfOtherProfilers) {
  TraceRecord record = empty_record();
  add_step(record, 0);
  add_step(record, 200);
  const nlohmann::ordered_json json = metric_series(split_time(record), 64, {1'500'000'000, 2'000'000'000});
  EXPECT_THAT(json["training_speed"]["values"].get<std::vector<double>>(),
              ElementsAre(testing::DoubleEq(640), testing::DoubleEq(640)));
  EXPECT_THAT(json["memory_usage"]["values"].get<std::vector<double>>(),
              ElementsAre(testing::DoubleEq(1.5), testing::DoubleEq(2)));
  EXPECT_EQ(json["memory_usage"]["unit"], "GB");
  EXPECT_DOUBLE_EQ(json["data_loading_time"]["values"][0], 0.005);
  EXPECT_DOUBLE_EQ(json["forward_pass_time"]["values"][0], 0.020);
  EXPECT_DOUBLE_EQ(json["backward_pass_time"]["values"][1], 0.040);
  EXPECT_DOUBLE_EQ(json["optimizer_time"]["values"][1], 0.010);
  EXPECT_EQ(json.size(), 6U);
}

TEST(MetricSeries, MemoryThatNobodyMeasuredIsNull) {
  TraceRecord record = empty_record();
  add_step(record, 0);
  EXPECT_TRUE(metric_series(split_time(record), 64)["memory_usage"]["values"].is_null());
  EXPECT_THROW(metric_series(split_time(record), 64, {1, 2}), Error);
  EXPECT_THROW(metric_series(split_time(record), 0), Error);
}

TEST(ProfileSummary, CountsAndSumsSpansByName) {
  TraceRecord record = empty_record();
  std::int64_t at = 0;
  for (std::int64_t length = 1; length <= 10; ++length) {
    add(record, kForwardName, at, at + length);
    at += 100;
  }
  const ProfileSummary summary = get_profile_summary(record);
  EXPECT_EQ(summary.total_operations, 10);
  EXPECT_DOUBLE_EQ(summary.total_duration_s, 0.055);
  ASSERT_EQ(summary.operations.size(), 1U);
  const SpanStatistics& forward = summary.operations[0];
  EXPECT_EQ(forward.name, "forward");
  EXPECT_EQ(forward.count, 10);
  EXPECT_DOUBLE_EQ(forward.total_s, 0.055);
  EXPECT_DOUBLE_EQ(forward.mean_s, 0.0055);
  EXPECT_NEAR(forward.std_s, 0.00287228132, 1e-10);
  EXPECT_DOUBLE_EQ(forward.min_s, 0.001);
  EXPECT_DOUBLE_EQ(forward.max_s, 0.010);
  EXPECT_DOUBLE_EQ(forward.p50_s, 0.0055);
  EXPECT_DOUBLE_EQ(forward.p95_s, 0.00955);
  EXPECT_DOUBLE_EQ(forward.p99_s, 0.00991);
}

TEST(ProfileSummary, CountsNestedTimeOnceInTheTotal) {
  TraceRecord record = empty_record(2);
  add_step(record, 0);
  add(record, kForwardName, 0, 30, 1);
  const ProfileSummary summary = get_profile_summary(record);
  EXPECT_EQ(summary.total_operations, 7);
  EXPECT_DOUBLE_EQ(summary.total_duration_s, 0.130);
  EXPECT_EQ(summary.operations[0].name, "step");
  EXPECT_DOUBLE_EQ(summary.operations[0].total_s, 0.1);
  EXPECT_DOUBLE_EQ(summary.operations[1].total_s, 0.05);  // Both threads' forward.
}

TEST(ProfileSummary, GaugesAreNoOperationsAndAnEmptyRecordGivesAnEmptySummary) {
  TraceRecord record = empty_record();
  add(record, kGaugeName, 5, 5);
  const nlohmann::ordered_json json = to_json(get_profile_summary(record));
  EXPECT_EQ(json["total_operations"], 0);
  EXPECT_EQ(json["total_duration"], 0.0);
  EXPECT_TRUE(json["operations"].empty());
}

TEST(ProfileSummary, ItsTextIsItsJson) {
  ProfileSummary summary;
  summary.total_operations = 3;
  summary.operations.push_back({.name = "read \"a\"", .count = 3, .total_s = 0.5});
  EXPECT_EQ(nlohmann::ordered_json::parse(json_text(summary)), to_json(summary));
}

TEST(SpanDurations, AreThoseOfTheNameAloneAndTheirJsonHasEachOnce) {
  TraceRecord record = empty_record();
  std::int64_t at = 0;
  for (std::int64_t length = 1; length <= 10; ++length) {
    add(record, kForwardName, at, at + length);
    at += 100;
  }
  add(record, kGaugeName, 5, 5);
  const nlohmann::ordered_json json = to_json(span_durations(record, "forward"));
  EXPECT_EQ(json["count"], 10);
  EXPECT_DOUBLE_EQ(json["min_s"].get<double>(), 0.001);
  EXPECT_DOUBLE_EQ(json["max_s"].get<double>(), 0.010);
  EXPECT_NEAR(json["p50_s"].get<double>(), 0.005, 0.005 * DurationHistogram::kRelativeError);
  std::int64_t count = 0;
  for (const auto& range : json["ranges"]) count += range["count"].get<std::int64_t>();
  EXPECT_EQ(count, 10);
  EXPECT_LE(json["ranges"].front()["from_s"].get<double>(), 0.001);
}

TEST(SpanDurations, OfANameThatIsNotThereAreNoneAndACorruptRecordIsRefused) {
  TraceRecord record = empty_record();
  const nlohmann::ordered_json none = to_json(span_durations(record, "forward"));
  EXPECT_EQ(none["count"], 0);
  EXPECT_TRUE(none["mean_s"].is_null() && none["p99_s"].is_null() && none["ranges"].empty());
  add(record, kForwardName, 0, 1);
  record.events.front().name = 99;
  EXPECT_THROW(static_cast<void>(span_durations(record, "forward")), Error);
}

TEST(TimeSplit, SumsOfStepsLeaveTheRestToOther) {
  const TimeSplit split = sum_steps({1.0, 2.0}, {{0.1, 0, 0.2, 0.3, 0}, {0.2, 0.1, 0.5, 0.6, 0.1}});
  EXPECT_EQ(split.steps, 2);
  EXPECT_DOUBLE_EQ(split.total_s, 3);
  EXPECT_DOUBLE_EQ(split.data_wait_s, 0.3);
  EXPECT_DOUBLE_EQ(split.backward_s, 0.9);
  EXPECT_DOUBLE_EQ(split.other_s, 0.9);
  TimeSplit sums;
  add_sums(sums, split);
  add_sums(sums, split);
  EXPECT_EQ(sums.steps, 4);
  EXPECT_DOUBLE_EQ(sums.total_s, 6);
  EXPECT_DOUBLE_EQ(sums.transfer_s, 0.2);
  EXPECT_DOUBLE_EQ(sums.other_s, 1.8);
  EXPECT_TRUE(sums.step_s.empty() && sums.parts.empty());
}

}  // namespace
}  // namespace headrace
