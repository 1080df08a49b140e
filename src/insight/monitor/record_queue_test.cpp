#include "insight/monitor/record_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace headrace {
namespace {

MonitorRecord record_of(std::int64_t step) {
  return {step, 0, {{"loss", static_cast<double>(step)}}};
}

TEST(RecordQueue, GivesWhatItTookInOrderAndRefusesWhenItIsFull) {
  RecordQueue queue(3);
  ASSERT_EQ(queue.size(), 4);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.try_push(record_of(i)));
    MonitorRecord refused = record_of(7);
    EXPECT_FALSE(queue.try_push(std::move(refused)));
    EXPECT_EQ(refused.metrics.size(), 1U);  // As it was. NOLINT(bugprone-use-after-move)
    EXPECT_EQ(queue.pushed(), 4 * (round + 1));
    MonitorRecord record;
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(queue.try_pop(record));
      EXPECT_EQ(record.step, i);
    }
    EXPECT_FALSE(queue.try_pop(record));
  }
}

TEST(RecordQueue, OfOneRecordHasRoomForTwo) {
  RecordQueue queue(1);
  EXPECT_TRUE(queue.try_push(record_of(1)));
  EXPECT_TRUE(queue.try_push(record_of(2)));
  EXPECT_FALSE(queue.try_push(record_of(3)));
}

TEST(RecordQueue, EveryRecordOfManyThreadsArrivesOnceOrIsRefused) {
  constexpr int kThreads = 3, kEach = 20'000;
  RecordQueue queue(64);
  std::atomic<int> refused{0}, ended{0};
  std::vector<std::int64_t> last(kThreads, -1);
  int arrived = 0;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kEach; ++i) {
          if (!queue.try_push(record_of(std::int64_t{thread} * kEach + i))) refused.fetch_add(1);
        }
        ended.fetch_add(1);
      });
    }
    MonitorRecord record;
    while (true) {
      const bool is_over = ended.load() == kThreads;
      if (!queue.try_pop(record)) {
        if (is_over) break;
        std::this_thread::yield();
        continue;
      }
      ++arrived;
      const auto thread = static_cast<std::size_t>(record.step / kEach);
      EXPECT_GT(record.step, last[thread]);  // Of one thread they stay in order.
      last[thread] = record.step;
      ASSERT_EQ(record.metrics.size(), 1U);
      EXPECT_EQ(record.metrics[0].value, static_cast<double>(record.step));
    }
  }
  EXPECT_EQ(arrived + refused.load(), kThreads * kEach);
}

}  // namespace
}  // namespace headrace
