#include "app/cli/profiling_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <cstdint>
#include <string>

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr double kSpan = 25e-9;

// `count` spans of thread "main", and one of thread "loader 0", in `seconds`.
TraceRecord record_of(std::int64_t count, double seconds, const std::string& category = "work") {
  TraceRecord record;
  record.names = {{"augment", category}, {"step", "step"}};
  record.threads = {"loader 0", "main"};
  record.duration_ns = static_cast<std::int64_t>(seconds * 1e9);
  record.events.push_back({.name = 1, .thread = 0, .begin_ns = 0, .end_ns = 10, .value = 0});
  for (std::int64_t i = 0; i < count; ++i) {
    record.events.push_back({.name = 0, .thread = 1, .begin_ns = 100 * i, .end_ns = 100 * i + 50, .value = 0});
  }
  return record;
}

TEST(ProfilingCost, IsAFindingAboveAPercentOfAThreadsTime) {
  EXPECT_FALSE(profiling_overhead(TraceRecord{}, kSpan).has_value());
  EXPECT_FALSE(profiling_overhead(record_of(3900, 0.01), kSpan).has_value());  // 0.975 %.
  const auto finding = profiling_overhead(record_of(8000, 0.01), kSpan);
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->code, "profiling_overhead");
  EXPECT_EQ(finding->sentence,
            "the recording took at least 2.0 % of the time of thread \"main\": 8000 spans in 0.01 s, 25 ns each here");
  EXPECT_THAT(finding->advice, HasSubstr("every_steps=10 would save 1.8 % of the time"));
  EXPECT_THAT(finding->advice, HasSubstr("`headrace profile SCRIPT` as --every-steps and --names"));
  EXPECT_THAT(finding->advice, HasSubstr("without \"augment\", of which there are most (8000)"));
}

TEST(ProfilingCost, OfOperatorsTheMendIsAnother) {
  const auto finding = profiling_overhead(record_of(8000, 0.01, "operator,memory [[3, 4]]"), kSpan);
  ASSERT_TRUE(finding.has_value());
  EXPECT_THAT(finding->advice, HasSubstr("leave out record_shapes and profile_memory"));
  EXPECT_THAT(finding->advice, HasSubstr("hr.profile(every_steps=10), or schedule=: every tenth one alone would save"));
}

TEST(ProfilingCost, GaugesAndAnUnknownDurationAreNoSpans) {
  TraceRecord record = record_of(8000, 0.01);
  record.duration_ns = 0;
  EXPECT_FALSE(profiling_overhead(record, kSpan).has_value());
  record = record_of(8000, 0.01);
  for (TraceEvent& event : record.events) event.end_ns = event.begin_ns;
  EXPECT_FALSE(profiling_overhead(record, kSpan).has_value());
}

TEST(ProfilingCost, OfASpanIsMoreThanNothingAndLessThanAMillisecond) {
  EXPECT_GT(span_seconds(), 0);
  EXPECT_LT(span_seconds(), 1e-3);
}

}  // namespace
}  // namespace headrace
