#include <headrace/error.h>
#include <headrace/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/trace/detail/ring.h"

namespace headrace {
namespace {

constexpr SpanName kOuter{"outer", "work"}, kInner{"inner", "work"}, kFill{"fill", "mark"};
constexpr SpanName kOuterAgain{"outer", "work"};  // Another address, the same name.
Counter test_count{"test_count"};

const std::string& name_of(const TraceRecord& record, const TraceEvent& event) {
  return record.names[event.name].text;
}

TEST(Trace, RecordsSpansWithNameValueAndThread) {
  Trace trace;
  name_this_thread("tester");
  { Span span{kOuter, 42}; }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 1U);
  const TraceEvent& event = record.events[0];
  EXPECT_EQ(record.names[event.name].text, "outer");
  EXPECT_EQ(record.names[event.name].category, "work");
  EXPECT_EQ(record.threads[event.thread], "tester");
  EXPECT_EQ(event.value, 42);
  EXPECT_GE(event.begin_ns, 0);
  EXPECT_GT(event.end_ns, event.begin_ns);
  EXPECT_LE(event.end_ns, record.duration_ns);
  EXPECT_EQ(record.dropped, 0);
}

TEST(Trace, NothingIsRecordedWithoutIt) {
  { Span span{kOuter}; }
  record_gauge(kFill, 1);
  Trace trace;
  EXPECT_TRUE(trace.stop().events.empty());
}

TEST(Trace, OpenSpansAreNotInTheRecordNorInTheNext) {
  {
    Trace first;
    Span open{kOuter};
    { Span closed{kInner}; }
    EXPECT_EQ(first.stop().events.size(), 1U);
  }
  {
    auto first = std::make_unique<Trace>();
    Span open{kOuter};
    first.reset();
    Trace second;
    { Span moved_in = Span{kInner}; }
    EXPECT_EQ(second.stop().events.size(), 1U);
  }
}

TEST(Trace, SpanOfAnEarlierRecordingStaysOut) {
  auto first = std::make_unique<Trace>();
  auto span = std::make_unique<Span>(kOuter);
  first.reset();
  Trace second;
  span.reset();
  EXPECT_TRUE(second.stop().events.empty());
}

TEST(Trace, OuterSpansComeBeforeInnerOnes) {
  Trace trace;
  for (int i = 0; i < 100; ++i) {
    Span outer{kOuter, i};
    Span inner{kInner, i};
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 200U);
  for (std::size_t i = 0; i < 200; i += 2) {
    const TraceEvent &outer = record.events[i], &inner = record.events[i + 1];
    ASSERT_EQ(name_of(record, outer), "outer");
    ASSERT_EQ(name_of(record, inner), "inner");
    ASSERT_EQ(outer.value, inner.value);
    ASSERT_LE(outer.begin_ns, inner.begin_ns);
    ASSERT_GE(outer.end_ns, inner.end_ns);
  }
}

TEST(Trace, EqualTicksKeepTheOuterSpanFirst) {
  Trace trace;
  const std::uint64_t begin = detail::ticks();
  for (const std::uint64_t outer_length : {100'000, 200'000}) {
    detail::record(kInner, begin, begin + 100'000, 0);
    detail::record(kOuter, begin, begin + outer_length, 0);
    const TraceRecord record = trace.take();
    ASSERT_EQ(record.events.size(), 2U);
    EXPECT_EQ(name_of(record, record.events[0]), "outer") << outer_length;
  }
}

TEST(Trace, LengthsAgreeWithTheMonotonicClock) {
  const auto spin = [](std::int64_t ns) {
    const std::int64_t begin = monotonic_ns();
    while (monotonic_ns() - begin < ns) {
    }
    return monotonic_ns() - begin;
  };
  Trace trace;
  spin(20'000'000);
  const std::int64_t before = monotonic_ns();
  std::int64_t inside = 0;
  {
    Span span{kOuter};
    inside = spin(20'000'000);
  }
  const std::int64_t around = monotonic_ns() - before;
  spin(20'000'000);
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 1U);
  const std::int64_t length = record.events[0].end_ns - record.events[0].begin_ns;
  // 0.1 % is more than the calibration can be off.
  EXPECT_GE(length, inside - inside / 1000);
  EXPECT_LE(length, around + around / 1000);
  EXPECT_GE(record.events[0].begin_ns, 20'000'000 - 20'000);
}

TEST(Trace, EqualNamesAreOneName) {
  Trace trace;
  { Span span{kOuter}; }
  { Span span{kOuterAgain}; }
  const TraceRecord record = trace.stop();
  EXPECT_EQ(record.names.size(), 1U);
  EXPECT_EQ(record.events.size(), 2U);
}

TEST(Trace, GaugesAreMomentsWithAValue) {
  Trace trace;
  record_gauge(kFill, -7);
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.events[0].begin_ns, record.events[0].end_ns);
  EXPECT_EQ(record.events[0].value, -7);
}

TEST(Trace, SecondRecordingAtOnceIsAnErrorAndTheFirstGoesOn) {
  Trace first;
  try {
    Trace second;
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::StartsWith("trace: "));
  }
  { Span span{kOuter}; }
  EXPECT_EQ(first.stop().events.size(), 1U);
  Trace after_stop;
  EXPECT_TRUE(after_stop.stop().events.empty());
}

TEST(Trace, SizeOutOfRangeIsAnError) {
  EXPECT_THROW((Trace{{.events_per_thread = 0}}), Error);
  EXPECT_THROW((Trace{{.events_per_thread = std::int64_t{1} << 40}}), Error);
  EXPECT_TRUE(Trace{}.stop().events.empty());
}

TEST(Trace, FullRingKeepsTheNewestAndCountsTheRest) {
  Trace trace{{.events_per_thread = 16}};
  for (int i = 0; i < 100; ++i) Span span{kOuter, i};
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 15U);
  EXPECT_EQ(record.dropped, 85);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(record.events[i].value, 85 + static_cast<int>(i));
}

TEST(Trace, RingSizeMayChangeBetweenRecordings) {
  for (const std::int64_t size : {16, 1024, 16, 32}) {
    Trace trace{{.events_per_thread = size}};
    for (int i = 0; i < 2000; ++i) Span span{kOuter, i};
    const TraceRecord record = trace.stop();
    EXPECT_EQ(record.events.size(), static_cast<std::size_t>(size - 1));
    EXPECT_EQ(record.dropped, 2000 - (size - 1));
  }
}

TEST(Trace, TakeEmptiesTheRingsAndGoesOn) {
  Trace trace{{.events_per_thread = 64}};
  std::int64_t next = 0, last_end = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 50; ++i) Span span{kOuter, round * 50 + i};
    const TraceRecord record = trace.take();
    ASSERT_EQ(record.events.size(), 50U);
    ASSERT_EQ(record.dropped, 0);
    ASSERT_GE(record.duration_ns, last_end);
    for (const TraceEvent& event : record.events) ASSERT_EQ(event.value, next++);
    last_end = record.events.back().end_ns;
  }
  EXPECT_TRUE(trace.stop().events.empty());
}

TEST(Trace, ThreadsThatEndedStayInTheRecord) {
  Trace trace;
  for (int i = 0; i < 20; ++i) {
    std::thread([i] {
      name_this_thread("worker " + std::to_string(i));
      Span span{kOuter, i};
    }).join();
  }
  std::thread([] { name_this_thread("silent"); }).join();
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 20U);
  ASSERT_EQ(record.threads.size(), 20U);
  for (const TraceEvent& event : record.events) {
    EXPECT_EQ(record.threads[event.thread], "worker " + std::to_string(event.value));
  }
}

TEST(Trace, ThreadWithoutANameIsNumbered) {
  Trace trace;
  std::thread([] { Span span{kOuter}; }).join();
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.threads.size(), 1U);
  EXPECT_THAT(record.threads[0], testing::MatchesRegex("thread [0-9]+"));
}

TEST(Trace, EveryThreadsEventsAreWhole) {
  constexpr int kThreads = 4, kEvents = 20'000;
  Trace trace;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kEvents; ++i) Span span{t % 2 == 0 ? kOuter : kInner, t * kEvents + i};
    });
  }
  for (auto& thread : threads) thread.join();
  const TraceRecord record = trace.stop();
  EXPECT_EQ(record.dropped, 0);
  std::set<std::int64_t> values;
  for (const TraceEvent& event : record.events) {
    values.insert(event.value);
    ASSERT_EQ(name_of(record, event), event.value / kEvents % 2 == 0 ? "outer" : "inner");
  }
  EXPECT_EQ(values.size(), static_cast<std::size_t>(kThreads * kEvents));
}

TEST(Trace, TakingWhileThreadsWriteLosesNothing) {
  constexpr int kThreads = 3;
  Trace trace{{.events_per_thread = 256}};
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> written{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::int64_t count = 0;
      for (; !stop.load(std::memory_order_relaxed); ++count) Span span{kOuter, count};
      written += count;
    });
  }
  std::int64_t seen = 0;
  const auto count = [](const TraceRecord& record) {
    return static_cast<std::int64_t>(record.events.size()) + record.dropped;
  };
  while (seen < 100'000) seen += count(trace.take());
  stop = true;
  for (auto& thread : threads) thread.join();
  seen += count(trace.stop());
  EXPECT_EQ(seen, written);
}

TEST(Trace, StartsAndStopsWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
        Span span{kOuter, 1};
        record_gauge(kFill, 2);
        test_count.add(1);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    Trace trace{{.events_per_thread = i % 2 == 0 ? 64 : 256}};
    const TraceRecord record = trace.stop();
    for (const TraceEvent& event : record.events) {
      ASSERT_EQ(event.value, name_of(record, event) == "outer" ? 1 : 2);
      ASSERT_LE(event.end_ns, record.duration_ns);
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(Counter, SumsOverRunningAndFinishedThreads) {
  static Counter counter{"sums"};
  const std::int64_t before = counter.total();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 10'000; ++i) counter.add(2);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  counter.add(-1);
  EXPECT_EQ(counter.total() - before, 3 * 4 * 10'000 * 2 - 1);
}

TEST(Counter, TheSameNameIsTheSameCounter) {
  Counter first{"shared"}, second{"shared"};
  const std::int64_t before = first.total();
  second.add(5);
  EXPECT_EQ(first.total() - before, 5);
}

TEST(Counter, RecordsHoldTheIncreaseSinceStartOrLastTake) {
  static Counter counter{"increase"};
  const auto increase_in = [](const TraceRecord& record) {
    for (const auto& total : record.counters) {
      if (total.text == "increase") return total.total;
    }
    return std::int64_t{-1};
  };
  counter.add(100);
  Trace trace;
  counter.add(1);
  EXPECT_EQ(increase_in(trace.take()), 1);
  counter.add(2);
  EXPECT_EQ(increase_in(trace.stop()), 2);
}

struct CountsAtThreadEnd {
  ~CountsAtThreadEnd() {
    test_count.add(1000);
    Span span{kOuter, 99};
  }
};

TEST(Counter, CountsAndSpansInDestructorsOfTheThreadAreKept) {
  Trace trace;
  const std::int64_t before = test_count.total();
  std::thread([] {
    thread_local CountsAtThreadEnd last;
    static_cast<void>(&last);
    Span span{kInner, 1};
  }).join();
  EXPECT_EQ(test_count.total() - before, 1000);
  EXPECT_EQ(trace.stop().events.size(), 2U);
}

TEST(Ring, DrainReturnsEachEventOnceAndCountsTheOverwritten) {
  const auto ring = detail::ThreadRing::make(8);
  std::vector<detail::RawEvent> events;
  EXPECT_EQ(ring->drain(events), 0);
  for (int i = 0; i < 5; ++i) ring->push(kOuter, 1, 2, i);
  EXPECT_EQ(ring->drain(events), 0);
  EXPECT_EQ(events.size(), 5U);
  for (int i = 5; i < 25; ++i) ring->push(kOuter, 1, 2, i);
  EXPECT_EQ(ring->drain(events), 13);
  ASSERT_EQ(events.size(), 12U);
  EXPECT_EQ(events[5].value, 18);
  EXPECT_EQ(events.back().value, 24);
  ring->push(kOuter, 1, 2, 25);
  ring->discard();
  EXPECT_EQ(ring->drain(events), 0);
  EXPECT_EQ(events.size(), 12U);
}

TEST(Ring, EventsAreWholeAndComeOnceWhileTheOwnerWrites) {
  constexpr std::int64_t kEvents = 3'000'000;
  const auto ring = detail::ThreadRing::make(64);
  std::atomic<bool> done{false};
  std::thread owner([&] {
    for (std::int64_t i = 1; i <= kEvents; ++i) {
      const auto ticks = static_cast<std::uint64_t>(i);
      ring->push(i % 3 == 0 ? kOuter : kInner, ticks, 2 * ticks, i);
    }
    done = true;
  });
  std::int64_t last = 0, kept = 0, dropped = 0;
  const auto drain = [&] {
    std::vector<detail::RawEvent> events;
    dropped += ring->drain(events);
    kept += static_cast<std::int64_t>(events.size());
    for (const detail::RawEvent& event : events) {
      ASSERT_GT(event.value, last);
      ASSERT_EQ(event.begin, static_cast<std::uint64_t>(event.value));
      ASSERT_EQ(event.end, 2 * event.begin);
      ASSERT_EQ(event.name, event.value % 3 == 0 ? &kOuter : &kInner);
      last = event.value;
    }
  };
  while (!done && !testing::Test::HasFatalFailure()) drain();
  owner.join();
  drain();
  EXPECT_EQ(last, kEvents);
  EXPECT_EQ(kept + dropped, kEvents);
}

}  // namespace
}  // namespace headrace
