#include <headrace/error.h>
#include <headrace/options.h>
#include <headrace/trace.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exec/bounded_queue.h"
#include "exec/cores.h"

namespace headrace {
namespace {

constexpr SpanName kWaitPush{"queue full", "wait"}, kWaitPop{"queue empty", "wait"};

TEST(BoundedQueue, GivesBackInTheOrderOfPushing) {
  BoundedQueue<int> queue{3, kWaitPush, kWaitPop};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.push(i));
  EXPECT_EQ(queue.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.pop(), i);
}

TEST(BoundedQueue, TryPushRefusesWhenFullAndKeepsTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue{1, kWaitPush, kWaitPop};
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.try_push(first));
  EXPECT_FALSE(queue.try_push(second));
  ASSERT_NE(second, nullptr);
  queue.close();
  EXPECT_FALSE(queue.try_push(second));
  EXPECT_EQ(**queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, CloseLetsTheRestBePoppedAndRefusesMore) {
  BoundedQueue<int> queue{2, kWaitPush, kWaitPop};
  queue.push(1);
  queue.close();
  EXPECT_FALSE(queue.push(2));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, CloseWakesEveryWaiter) {
  BoundedQueue<int> empty{1, kWaitPush, kWaitPop}, full{1, kWaitPush, kWaitPop};
  full.push(0);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
    waiters.emplace_back([&] { EXPECT_FALSE(full.push(1)); });
  }
  empty.close();
  full.close();
  for (auto& waiter : waiters) waiter.join();
}

TEST(BoundedQueue, ManyThreadsLoseAndDoubleNothing) {
  constexpr int kThreads = 3, kItems = 5000;
  BoundedQueue<int> queue{4, kWaitPush, kWaitPop};
  std::vector<std::thread> producers, consumers;
  std::vector<std::vector<int>> popped(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) queue.push(t * kItems + i);
    });
    consumers.emplace_back([&, t] {
      while (const auto item = queue.pop()) popped[static_cast<std::size_t>(t)].push_back(*item);
    });
  }
  for (auto& producer : producers) producer.join();
  queue.close();
  for (auto& consumer : consumers) consumer.join();
  std::vector<int> all;
  for (const auto& part : popped) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), static_cast<std::size_t>(kThreads * kItems));
  for (int i = 0; i < kThreads * kItems; ++i) ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
}

// The names of the spans in the record.
std::vector<std::string> spans_in(const TraceRecord& record) {
  std::vector<std::string> names;
  for (const TraceEvent& event : record.events) names.push_back(record.names[event.name].text);
  return names;
}

TEST(BoundedQueue, NothingIsTracedWhereNobodyWaits) {
  BoundedQueue<int> queue{1, kWaitPush, kWaitPop};
  Trace trace;
  queue.push(1);
  EXPECT_EQ(queue.pop(), 1);
  queue.close();
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_TRUE(trace.stop().events.empty());
}

TEST(BoundedQueue, WaitingIsTracedUnderItsName) {
  BoundedQueue<int> queue{1, kWaitPush, kWaitPop};
  Trace trace;
  // Nobody can see from outside whether a wait began before the other side came, so the race is run until it did.
  std::vector<std::string> names;
  while (names.empty()) {
    std::thread consumer([&] { EXPECT_EQ(queue.pop(), 1); });
    queue.push(1);
    consumer.join();
    names = spans_in(trace.take());
  }
  EXPECT_EQ(names, std::vector<std::string>{"queue empty"});
  names.clear();
  while (names.empty()) {
    queue.push(1);
    std::thread producer([&] { EXPECT_TRUE(queue.push(2)); });
    EXPECT_EQ(queue.pop(), 1);
    producer.join();
    EXPECT_EQ(queue.pop(), 2);
    names = spans_in(trace.take());
  }
  EXPECT_EQ(names, std::vector<std::string>{"queue full"});
}

TEST(Cores, ComputeTakesEveryUsableCoreUnlessTold) {
  const CoreSplit automatic = split_cores(4, 0, 2);
  EXPECT_EQ(automatic.compute, 4);
  EXPECT_EQ(automatic.loading, 2);
  EXPECT_EQ(split_cores(1, 0, 0).compute, 1);
  EXPECT_EQ(split_cores(1, 0, 0).loading, 0);
  EXPECT_EQ(split_cores(4, 0, AUTOTUNE).loading, 1);
}

TEST(Cores, WrittenNumbersAreLaw) {
  const CoreSplit split = split_cores(2, 8, 16);
  EXPECT_EQ(split.compute, 8);
  EXPECT_EQ(split.loading, 16);
}

TEST(Cores, NumbersOutOfRangeAreErrors) {
  EXPECT_THROW(split_cores(2, -1, 0), Error);
  EXPECT_THROW(split_cores(2, 0, -2), Error);
  EXPECT_THROW(split_cores(2, 0, std::int64_t{1} << 33), Error);
}

}  // namespace
}  // namespace headrace
