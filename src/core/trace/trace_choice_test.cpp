#include <headrace/error.h>
#include <headrace/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {
namespace {

constexpr SpanName kForwardAll{"forward", "step"}, kForwardHead{"forward head", "work"}, kLoad{"load", "work"};
constexpr SpanName kFill{"fill", "mark"};

std::multiset<std::string> names_in(const TraceRecord& record) {
  std::multiset<std::string> found;
  for (const TraceEvent& event : record.events) found.insert(record.names[event.name].text);
  return found;
}

void record_each() {
  { Span span{kForwardAll}; }
  { Span span{kForwardHead}; }
  { Span span{kLoad}; }
  record_gauge(kFill, 1);
  const TraceMoment now = trace_moment();
  record_span(kLoad, now, {now.ticks + 10});
}

TEST(TraceChoice, OnlyMatchingNamesAreRecorded) {
  Trace trace{{.choice = {.names = {"forward*", "fill"}}}};
  for (int i = 0; i < 3; ++i) record_each();
  const std::multiset<std::string> found = names_in(trace.stop());
  EXPECT_EQ(found.count("forward"), 3U);
  EXPECT_EQ(found.count("forward head"), 3U);
  EXPECT_EQ(found.count("fill"), 3U);
  EXPECT_EQ(found.size(), 9U);
}

TEST(TraceChoice, TheNextRecordingHasItsOwnNames) {
  for (const char* name : {"load", "fill", "load"}) {
    Trace trace{{.choice = {.names = {name}}}};
    record_each();
    const std::multiset<std::string> found = names_in(trace.stop());
    EXPECT_EQ(found.size(), found.count(name));
    EXPECT_GE(found.size(), 1U);
  }
  Trace all;
  record_each();
  EXPECT_EQ(all.stop().events.size(), 5U);
}

TEST(TraceChoice, MoreNamesThanTheTableHoldsAreToldApartAllTheSame) {
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) texts.push_back((i % 3 == 0 ? "wanted " : "other ") + std::to_string(i));
  std::vector<SpanName> names;
  for (const std::string& text : texts) names.push_back({text.c_str(), "work"});
  Trace trace{{.choice = {.names = {"wanted *"}}}};
  for (int round = 0; round < 2; ++round) {
    for (const SpanName& name : names) Span span{name};
  }
  const TraceRecord record = trace.stop();
  EXPECT_EQ(record.events.size(), 2000U);
  EXPECT_EQ(record.names.size(), 1000U);
}

TEST(TraceChoice, OfSampledStepsOnlyEveryNthIsRecordedAndNothingBeforeTheFirst) {
  Trace trace{{.choice = {.every_steps = 10}}};
  record_each();
  for (std::int64_t step = 0; step < 100; ++step) {
    begin_traced_step(step);
    Span span{step::kStep, step};
    { Span part{kForwardAll, step}; }
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 20U);
  for (const TraceEvent& event : record.events) EXPECT_EQ(event.value % 10, 0);
  begin_traced_step(0);  // Nothing records any more.
  { Span span{kLoad}; }
  Trace after;
  { Span span{kLoad}; }
  EXPECT_EQ(after.stop().events.size(), 1U);
}

TEST(TraceChoice, StepsThatJumpAreRecordedByTheirNumbersAlone) {
  Trace trace{{.choice = {.every_steps = 10}}};
  for (const std::int64_t step : {3, 10, 20, 20, 7, 8, 30, -10, -1, 1}) {
    begin_traced_step(step);
    Span span{step::kStep, step};
  }
  const TraceRecord record = trace.stop();
  std::vector<std::int64_t> found;
  for (const TraceEvent& event : record.events) found.push_back(event.value);
  EXPECT_THAT(found, testing::ElementsAre(10, 20, 20, 30, -10));
}

TEST(TraceChoice, TheNextRecordingHasItsOwnInterval) {
  for (const std::int64_t interval : {5, 3, 5}) {
    Trace trace{{.choice = {.every_steps = interval}}};
    for (std::int64_t step = 0; step < 15; ++step) {
      begin_traced_step(step);
      Span span{step::kStep, step};
    }
    EXPECT_EQ(trace.stop().events.size(), static_cast<std::size_t>(15 / interval));
  }
}

TEST(TraceChoice, StepsAndNamesAreChosenTogether) {
  Trace trace{{.choice = {.names = {"forward"}, .every_steps = 2}}};
  for (std::int64_t step = 0; step < 10; ++step) {
    begin_traced_step(step);
    record_each();
  }
  const TraceRecord record = trace.stop();
  EXPECT_EQ(record.events.size(), 5U);
  EXPECT_EQ(names_in(record).count("forward"), 5U);
}

TEST(TraceChoice, KeptNamesAreRecordedInEveryStepBesideWhatIsChosen) {
  for (const bool has_names : {false, true}) {
    Trace trace{{.choice = {.names = has_names ? std::vector<std::string>{"fill"} : std::vector<std::string>{},
                            .every_steps = 5,
                            .kept = {"forward"}}}};
    record_each();
    for (std::int64_t step = 0; step < 10; ++step) {
      begin_traced_step(step);
      record_each();
    }
    const std::multiset<std::string> found = names_in(trace.stop());
    EXPECT_EQ(found.count("forward"), 11U);
    EXPECT_EQ(found.count("fill"), 2U);
    EXPECT_EQ(found.count("load"), has_names ? 0U : 4U);
  }
}

TEST(TraceChoice, KeptNamesAreRecordedOutsideOfTheTimeAndOnlyInTheirRecording) {
  {
    Trace trace{{.choice = {.from_ns = std::numeric_limits<std::int64_t>::max(), .kept = {"forward"}}}};
    record_each();
    const std::multiset<std::string> found = names_in(trace.stop());
    EXPECT_EQ(found.size(), 1U);
    EXPECT_EQ(found.count("forward"), 1U);
  }
  Trace trace{{.choice = {.names = {"load"}}}};
  record_each();
  EXPECT_EQ(names_in(trace.stop()).count("forward"), 0U);
}

TEST(TraceChoice, OnlyWhatBeginsWithinTheTimeIsRecorded) {
  constexpr std::int64_t kFrom_ns = 20'000'000, kLength_ns = 200'000'000;
  Trace trace{{.choice = {.from_ns = kFrom_ns, .length_ns = kLength_ns}}};
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  while (std::chrono::steady_clock::now() < end) {
    Span span{kLoad};
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const TraceRecord record = trace.stop();
  ASSERT_FALSE(record.events.empty());
  for (const TraceEvent& event : record.events) {
    EXPECT_GE(event.begin_ns, kFrom_ns);
    EXPECT_LT(event.begin_ns, kFrom_ns + kLength_ns);
  }
  EXPECT_GT(record.duration_ns, kFrom_ns + kLength_ns);
}

TEST(TraceChoice, ATimeThatNeverComesAndOneThatNeverEndsAreNoOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  {
    Trace trace{{.choice = {.from_ns = kMost}}};
    record_each();
    EXPECT_TRUE(trace.stop().events.empty());
  }
  Trace trace{{.choice = {.length_ns = kMost}}};
  record_each();
  EXPECT_EQ(trace.stop().events.size(), 5U);
}

TEST(TraceChoice, ThreadsThatRecordWhileTheChoiceChangesLeaveOnlyWhatItHas) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) record_each();
    });
  }
  for (int i = 0; i < 50; ++i) {
    const std::string name = i % 2 == 0 ? "load" : "fill";
    Trace trace{{.choice = {.names = {name}}}};
    std::this_thread::yield();
    const std::multiset<std::string> found = names_in(trace.stop());
    ASSERT_EQ(found.size(), found.count(name));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(TraceChoice, OutOfRangeNamesTheField) {
  const auto refusal = [](TraceChoice choice) -> std::string {
    try {
      Trace trace{{.choice = std::move(choice)}};
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal({.names = {"a", ""}}), testing::HasSubstr("names"));
  EXPECT_THAT(refusal({.kept = {""}}), testing::HasSubstr("kept: wanted patterns"));
  EXPECT_THAT(refusal({.every_steps = 0}), testing::HasSubstr("every_steps is 0, wanted at least 1"));
  EXPECT_THAT(refusal({.from_ns = -1}), testing::HasSubstr("from_ns is -1"));
  EXPECT_THAT(refusal({.length_ns = -2}), testing::HasSubstr("length_ns is -2"));
  EXPECT_EQ(refusal({}), "");
}

}  // namespace
}  // namespace headrace
