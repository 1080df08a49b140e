// A thread's ring, used again by the next recording of its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/trace/detail/ring.h"

namespace headrace {
namespace {

constexpr SpanName kRead{"read", "work"}, kWrite{"write", "work"};

TEST(Ring, StartedAnewItHoldsWhatComesFromThenOn) {
  const auto ring = detail::ThreadRing::make(8);
  for (std::uint64_t i = 0; i < 11; ++i) ring->push(kRead, i, i + 1, 0);
  std::vector<detail::RawEvent> events;
  EXPECT_GT(ring->drain(events), 0);
  ring->restart();
  events.clear();
  EXPECT_EQ(ring->drain(events), 0);
  EXPECT_TRUE(events.empty());
  for (std::uint64_t i = 20; i < 23; ++i) ring->push(kWrite, i, i + 1, 0);
  EXPECT_EQ(ring->copy(events), 0);
  EXPECT_EQ(events.size(), 3U);
  events.clear();
  EXPECT_EQ(ring->drain(events), 0);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].begin, 20U);
  EXPECT_EQ(events[2].begin, 22U);
}

TEST(Ring, OfTheNextRecordingItHoldsNothingElse) {
  for (const int spans : {2000, 3, 2000, 15, 0, 1}) {
    Trace trace{{.events_per_thread = 16}};
    for (int i = 0; i < spans; ++i) Span span{kRead, i};
    const TraceRecord record = trace.stop();
    std::vector<std::int64_t> found, wanted;
    for (const TraceEvent& event : record.events) found.push_back(event.value);
    for (int i = std::max(0, spans - 15); i < spans; ++i) wanted.push_back(i);
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(record.dropped, std::max(0, spans - 15));
  }
}

TEST(Ring, AThreadThatSkipsARecordingHasNothingInIt) {
  std::atomic<int> asked{0}, done{0};
  std::thread writer([&] {
    for (int turn = 1; turn <= 2; ++turn) {
      while (asked < turn) std::this_thread::yield();
      for (int i = 0; i < 3; ++i) Span span{kWrite, turn};
      done = turn;
    }
  });
  const auto recorded = [&](int turn) {
    Trace trace{{.events_per_thread = 16}};
    { Span span{kRead, 0}; }
    asked = std::max(asked.load(), turn);
    while (done < turn) std::this_thread::yield();
    std::vector<std::int64_t> values;
    for (const TraceRecord record = trace.stop(); const TraceEvent& event : record.events)
      values.push_back(event.value);
    return values;
  };
  EXPECT_THAT(recorded(1), testing::ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(recorded(0), testing::ElementsAre(0));
  EXPECT_THAT(recorded(2), testing::ElementsAre(0, 2, 2, 2));
  writer.join();
}

TEST(Ring, WhatIsBeingCopiedIsLeftToTheCopy) {
  constexpr std::size_t kRecordings = 200;
  std::vector<std::unique_ptr<Trace>> traces(kRecordings);  // All live to the end: a copy may be under way in any.
  std::atomic<const Trace*> newest{nullptr};
  std::atomic<bool> stop{false};
  std::thread copies([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const Trace* trace = newest.load();
      if (trace == nullptr) continue;
      const TraceRecord record = trace->recent(1'000'000'000);
      for (const TraceEvent& event : record.events) {
        EXPECT_EQ(record.names[event.name].text, "read");
        EXPECT_LE(event.begin_ns, event.end_ns);
      }
    }
  });
  for (auto& trace : traces) {
    trace = std::make_unique<Trace>(TraceOptions{.events_per_thread = 64});
    newest = trace.get();
    for (int i = 0; i < 40; ++i) Span span{kRead, i};
    const TraceRecord record = trace->stop();
    EXPECT_EQ(record.events.size(), 40U);
    EXPECT_EQ(record.dropped, 0);
  }
  stop = true;
  copies.join();
}

}  // namespace
}  // namespace headrace
