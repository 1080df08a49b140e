#include <headrace/error.h>
#include <headrace/flight_recorder.h>
#include <headrace/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

constexpr SpanName kWork{"work", "work"};
constexpr std::int64_t kMinute = 60'000'000'000;

class FlightRecorderTest : public testing::Test {
 protected:
  FlightRecorderOptions options() const { return {.folder = folder_.path() / "flights"}; }

  // Waits for what was asked for.
  static FlightRecorder::Status when_written(const FlightRecorder& recorder, std::size_t dumps) {
    FlightRecorder::Status status = recorder.status();
    while (status.dumps.size() < dumps && status.problem.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      status = recorder.status();
    }
    return status;
  }

  TemporaryFolder folder_;
};

TEST(TraceRecent, HoldsWhatIsRecordedAndEmptiesNothing) {
  Trace trace;
  for (int i = 0; i < 10; ++i) Span span{kWork, i};
  for (int look = 0; look < 3; ++look) {
    const TraceRecord record = trace.recent(kMinute);
    ASSERT_EQ(record.events.size(), 10U);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(record.events[static_cast<std::size_t>(i)].value, i);
    EXPECT_EQ(record.dropped, 0);
  }
  EXPECT_EQ(trace.stop().events.size(), 10U);
}

TEST(TraceRecent, LeavesOutWhatBeganEarlier) {
  Trace trace;
  { Span span{kWork, 1}; }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  { Span span{kWork, 2}; }
  const TraceRecord record = trace.recent(300'000'000);
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.events[0].value, 2);
  EXPECT_EQ(record.duration_ns, 300'000'000);
  EXPECT_GE(record.events[0].begin_ns, 0);
  EXPECT_LE(record.events[0].end_ns, record.duration_ns);
}

TEST(TraceRecent, OfARingThatIsFullTheNewestAndTheOthersAsDropped) {
  Trace trace{{.events_per_thread = 16}};
  for (int i = 0; i < 100; ++i) Span span{kWork, i};
  const TraceRecord record = trace.recent(kMinute);
  ASSERT_EQ(record.events.size(), 15U);
  EXPECT_EQ(record.dropped, 85);
  EXPECT_EQ(record.events.back().value, 99);
}

TEST(TraceRecent, HasOnlyWhatIsChosenAlsoOfASpanThatBeganBeforeItsTime) {
  constexpr std::int64_t kFrom_ns = 200'000'000;
  Trace trace{{.choice = {.names = {"work"}, .from_ns = kFrom_ns}}};
  const TraceMoment before = trace_moment();
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  record_span(kWork, before, trace_moment(), 1);
  { Span span{kWork, 2}; }
  const TraceRecord record = trace.recent(kMinute);
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.events[0].value, 2);
}

TEST(TraceRecent, WithoutARecordingItIsEmpty) {
  Trace trace;
  static_cast<void>(trace.stop());
  EXPECT_TRUE(trace.recent(kMinute).events.empty());
}

TEST(TraceRecent, ThreadsThatEndedAreInItAndCopiesAreWholeWhileOthersRecord) {
  Trace trace{{.events_per_thread = 256}};
  std::thread([] {
    name_this_thread("ended");
    Span span{kWork, 7};
  }).join();
  std::atomic<bool> stop{false};
  std::thread running([&stop] {
    for (std::int64_t i = 1000; !stop.load(std::memory_order_relaxed); ++i) Span span{kWork, i};
  });
  for (int look = 0; look < 200; ++look) {
    const TraceRecord record = trace.recent(kMinute);
    std::int64_t last = 0;
    std::set<std::string> threads(record.threads.begin(), record.threads.end());
    EXPECT_EQ(threads.count("ended"), 1U);
    for (const TraceEvent& event : record.events) {
      if (record.threads[event.thread] == "ended") continue;
      ASSERT_TRUE(last == 0 || event.value == last + 1) << event.value << " behind " << last;  // No hole, nothing torn.
      last = event.value;
    }
  }
  stop = true;
  running.join();
}

TEST(TraceMemory, OfManyThreadsTogetherStaysWithinItsBound) {
  constexpr std::int64_t kMemory = std::int64_t{1} << 20;
  constexpr int kThreads = 40, kEvents = 5000;
  Trace trace{{.events_per_thread = 1 << 14, .memory_max = kMemory}};
  for (int t = 0; t < kThreads; ++t) {
    std::thread([t] {
      for (int i = 0; i < kEvents; ++i) Span span{kWork, t * kEvents + i};
    }).join();
  }
  const TraceRecord record = trace.stop();
  EXPECT_LE(record.events.size() * 32, static_cast<std::size_t>(kMemory));  // 32 bytes an event.
  EXPECT_EQ(static_cast<std::int64_t>(record.events.size()) + record.dropped, kThreads * kEvents);
  EXPECT_EQ(record.events.back().value, kThreads * kEvents - 1);  // The newest are there.
}

TEST(TraceMemory, RingsThatIdleThreadsHaveOfAnEarlierRecordingLeaveTheOthersTheirs) {
  std::atomic<int> recorded{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> idle;
  {
    Trace earlier{{.events_per_thread = 1 << 14}};  // 512 KiB a thread.
    for (int t = 0; t < 4; ++t) {
      idle.emplace_back([&] {
        { Span span{kWork}; }
        ++recorded;
        while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    }
    while (recorded < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Trace trace{{.memory_max = std::int64_t{1} << 20}};
  { Span span{kWork, 5}; }
  const TraceRecord record = trace.stop();
  stop = true;
  for (std::thread& thread : idle) thread.join();
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.events[0].value, 5);
}

TEST(TraceMemory, TooLittleIsAnError) {
  EXPECT_THROW((Trace{{.memory_max = 1000}}), Error);
  EXPECT_THROW((Trace{{.memory_max = -1}}), Error);
}

TEST_F(FlightRecorderTest, ADumpIsAChromeTraceOfWhatWasRecorded) {
  Trace trace{{.memory_max = kFlightMemory}};
  FlightRecorder recorder{trace, options()};
  for (int i = 0; i < 5; ++i) Span span{kWork, i};
  const std::string path = recorder.dump("asked: by hand");
  EXPECT_EQ(std::filesystem::path(path).filename(), "flight-00-asked--by-hand.json");
  const TraceRecord record = read_chrome_trace(path);
  std::vector<std::int64_t> values;
  for (const TraceEvent& event : record.events) values.push_back(event.value);
  EXPECT_EQ(values, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  const FlightRecorder::Status status = recorder.status();
  ASSERT_EQ(status.dumps.size(), 1U);
  EXPECT_EQ(status.dumps[0].reason, "asked: by hand");
  EXPECT_EQ(status.dumps[0].events, 5);
}

TEST_F(FlightRecorderTest, ARequestIsWrittenByItsOwnThreadAndTheLoopGoesOn) {
  Trace trace;
  FlightRecorder recorder{trace, options()};
  { Span span{kWork, 1}; }
  recorder.request("request");
  const FlightRecorder::Status status = when_written(recorder, 1);
  ASSERT_EQ(status.dumps.size(), 1U) << status.problem;
  EXPECT_EQ(read_chrome_trace(status.dumps[0].path).events.size(), 1U);
  EXPECT_EQ(trace.stop().events.size(), 1U);
}

TEST_F(FlightRecorderTest, WhatWasAskedForBeforeTheEndIsWritten) {
  Trace trace;
  {
    FlightRecorder recorder{trace, options()};
    { Span span{kWork, 1}; }
    recorder.request("last");
  }
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "flights" / "flight-00-last.json"));
}

TEST_F(FlightRecorderTest, WhatItsEndTellsHasTheLastDump) {
  Trace trace;
  FlightRecorder recorder{trace, options()};
  recorder.request("last");
  EXPECT_EQ(recorder.end().dumps.size(), 1U);
  EXPECT_EQ(recorder.dump("too late"), "");
  EXPECT_EQ(recorder.status().dumps.size(), 1U);
  FlightRecorder next{trace, options()};  // The place is free.
}

TEST_F(FlightRecorderTest, ASlowStepIsDumpedOnceInItsTimeAndOthersAreNot) {
  Trace trace;
  FlightRecorderOptions given = options();
  given.last_ns = 1'000'000'000;
  FlightRecorder recorder{trace, given};
  recorder.end_step(900'000'000);  // The first ones are slow beside nothing.
  for (int i = 0; i < 39; ++i) recorder.end_step(10'000'000);
  recorder.end_step(29'000'000);  // Not yet three times the median, within the histogram's error.
  EXPECT_EQ(recorder.status().slow_steps, 0);
  recorder.end_step(31'000'000);
  EXPECT_EQ(recorder.status().slow_steps, 1);
  EXPECT_EQ(when_written(recorder, 1).dumps.at(0).reason, "slow step");
  recorder.end_step(31'000'000);  // Within the second that the first dump reaches into.
  EXPECT_EQ(recorder.status().slow_steps, 2);
  for (int i = 0; i < 100; ++i) recorder.end_step(10'000'000);
  EXPECT_EQ(recorder.status().dumps.size(), 1U);
  recorder.end_step(40'000'000);
  EXPECT_EQ(when_written(recorder, 2).dumps.size(), 2U);
}

TEST_F(FlightRecorderTest, StepsShorterThanTheLeastAreNotSlowNorIsAnyWithFactorZero) {
  Trace trace;
  {
    FlightRecorder recorder{trace, options()};
    for (int i = 0; i < 40; ++i) recorder.end_step(1000);
    recorder.end_step(900'000);
    EXPECT_EQ(recorder.status().slow_steps, 0);
    recorder.end_step(1'100'000);
    EXPECT_EQ(recorder.status().slow_steps, 1);
  }
  FlightRecorderOptions none = options();
  none.slow_step_factor = 0;
  FlightRecorder recorder{trace, none};
  for (int i = 0; i < 40; ++i) recorder.end_step(1'000'000);
  recorder.end_step(kMinute);
  EXPECT_EQ(recorder.status().slow_steps, 0);
}

TEST_F(FlightRecorderTest, AnExceptionThatLeavesTheBlockIsDumped) {
  Trace trace;
  try {
    FlightRecorder recorder{trace, options()};
    Span span{kWork, 1};
    throw std::runtime_error("in the loop");
  } catch (const std::runtime_error&) {
  }
  const TraceRecord record = read_chrome_trace((folder_.path() / "flights" / "flight-00-exception.json").string());
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.events[0].value, 1);
}

std::atomic<int> others_calls{0};

TEST_F(FlightRecorderTest, ASignalIsDumpedAndWhatWasDoneOnItIsDoneAndPutBack) {
  struct sigaction before {};
  struct sigaction other {};
  other.sa_handler = [](int) { ++others_calls; };
  ASSERT_EQ(::sigaction(SIGUSR2, &other, &before), 0);
  others_calls = 0;
  Trace trace;
  {
    FlightRecorderOptions given = options();
    given.signal = SIGUSR2;
    FlightRecorder recorder{trace, given};
    { Span span{kWork, 1}; }
    ASSERT_EQ(::raise(SIGUSR2), 0);
    EXPECT_EQ(when_written(recorder, 1).dumps.at(0).reason, "signal");
    EXPECT_EQ(others_calls, 1);
  }
  ASSERT_EQ(::raise(SIGUSR2), 0);
  EXPECT_EQ(others_calls, 2);
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGUSR2, &before, &now), 0);
  EXPECT_EQ(now.sa_handler, other.sa_handler);
}

TEST_F(FlightRecorderTest, NoMoreFilesThanAskedForAreWrittenAndTheOthersCounted) {
  Trace trace;
  FlightRecorderOptions given = options();
  given.dumps_max = 2;
  FlightRecorder recorder{trace, given};
  for (int i = 0; i < 5; ++i) static_cast<void>(recorder.dump("again"));
  EXPECT_EQ(recorder.dump("again"), "");
  EXPECT_EQ(recorder.status().dumps.size(), 2U);
  EXPECT_EQ(recorder.status().refused, 4);
  const std::filesystem::directory_iterator files(folder_.path() / "flights");
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);  // And nothing half-written.
}

TEST_F(FlightRecorderTest, AFolderThatIsGoneIsToldAndTheLoopGoesOn) {
  Trace trace;
  FlightRecorder recorder{trace, options()};
  std::filesystem::remove_all(folder_.path() / "flights");
  recorder.request("request");
  EXPECT_THAT(when_written(recorder, 1).problem, testing::HasSubstr("flight-00-request.json"));
  { Span span{kWork, 1}; }
  EXPECT_EQ(trace.stop().events.size(), 1U);
}

TEST_F(FlightRecorderTest, ThereIsOneAtATimeAndWhatItIsGivenIsChecked) {
  Trace trace;
  const auto refusal = [&](const FlightRecorderOptions& given) -> std::string {
    try {
      FlightRecorder recorder{trace, given};
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  FlightRecorderOptions given = options();
  given.last_ns = 0;
  EXPECT_THAT(refusal(given), testing::HasSubstr("last_ns is 0"));
  given = options();
  given.slow_step_factor = 0.5;
  EXPECT_THAT(refusal(given), testing::HasSubstr("slow_step_factor is 0.5"));
  given = options();
  given.dumps_max = 0;
  EXPECT_THAT(refusal(given), testing::HasSubstr("dumps_max is 0"));
  EXPECT_THAT(refusal({}), testing::HasSubstr("folder"));
  given = options();
  given.signal = SIGKILL;
  EXPECT_THAT(refusal(given), testing::HasSubstr("cannot catch signal 9"));
  {
    FlightRecorder first{trace, options()};
    EXPECT_THAT(refusal(options()), testing::HasSubstr("one at a time"));
  }
  EXPECT_EQ(refusal(options()), "");
}

}  // namespace
}  // namespace headrace
