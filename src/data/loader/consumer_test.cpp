#include "data/loader/detail/consumer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>

namespace headrace::detail {
namespace {

using Left = std::atomic<std::int64_t>;

void expect_place(const Place& place, std::int64_t epoch, std::int64_t position) {
  EXPECT_EQ(place.epoch, epoch);
  EXPECT_EQ(place.position, position);
}

TEST(Consumer, StandsBehindABatchAsSoonAsItHasAskedForIt) {
  Consumer consumer;
  consumer.begin(2, {2, 8}, /*first=*/2, std::make_shared<Left>(5));
  expect_place(consumer.place(), 2, 8);
  EXPECT_EQ(consumer.next_batch(), 2);
  EXPECT_FALSE(consumer.has_request());
  consumer.request({}, /*now_ns=*/70);
  consumer.step({2, 12});
  EXPECT_TRUE(consumer.has_request());
  EXPECT_EQ(consumer.requested_ns(), 70);
  expect_place(consumer.place(), 2, 12);
  EXPECT_EQ(consumer.next_batch(), 3);
  consumer.take_request();
  EXPECT_FALSE(consumer.has_request());
  expect_place(consumer.place(), 2, 12);
}

TEST(Consumer, TheRequestThatIsTakenFulfilsItsFuture) {
  Consumer consumer;
  consumer.begin(0, {}, 0, std::make_shared<Left>(1));
  std::promise<std::optional<Batch>> promise;
  auto future = promise.get_future();
  consumer.request(std::move(promise), 0);
  auto taken = consumer.take_request();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  taken.set_value(std::nullopt);
  EXPECT_EQ(future.get(), std::nullopt);
}

TEST(Consumer, AStartComesBeforeWhereItStandsUntilAnEpochBegins) {
  Consumer consumer;
  expect_place(consumer.next_epoch(), 0, 0);
  consumer.begin(0, {0, 0}, 0, std::make_shared<Left>(3));
  consumer.step({0, 4});
  EXPECT_FALSE(consumer.has_start());
  expect_place(consumer.next_epoch(), 1, 0);
  consumer.start_at({5, 16, 99});
  EXPECT_TRUE(consumer.has_start());
  expect_place(consumer.place(), 5, 16);
  EXPECT_EQ(consumer.place().order, 99U);
  expect_place(consumer.next_epoch(), 5, 16);
  consumer.begin(5, {5, 16}, 4, std::make_shared<Left>(1));
  EXPECT_FALSE(consumer.has_start());
  expect_place(consumer.next_epoch(), 6, 0);
}

TEST(Consumer, AnEpochIsToldOfEachDeliveryAndOfItsEnd) {
  Consumer consumer;
  const auto left = std::make_shared<Left>(5);
  consumer.begin(0, {}, 0, left);
  consumer.count_delivery();
  EXPECT_EQ(*left, 4);
  consumer.end();
  EXPECT_EQ(*left, 0);
  EXPECT_EQ(left.use_count(), 1);  // The epoch owns it alone.
}

TEST(Consumer, TimeBlockedInAFutureIsNotItsOwn) {
  Consumer consumer;
  consumer.begin(0, {}, 0, std::make_shared<Left>(5));
  EXPECT_EQ(consumer.go_on(100, 200).busy_ns, 0);  // Nobody knows what it did before.
  consumer.blocked_ns()->fetch_add(30);
  const Consumer::Turn turn = consumer.go_on(500, 510);
  EXPECT_EQ(turn.asked_ns, 470);
  EXPECT_EQ(turn.busy_ns, 270);
  const Consumer::Turn next = consumer.go_on(600, 610);  // The 30 have been counted.
  EXPECT_EQ(next.asked_ns, 600);
  EXPECT_EQ(next.busy_ns, 90);
  consumer.blocked_ns()->fetch_add(1000);  // Longer than since it went on: of a future of an earlier batch.
  const Consumer::Turn last = consumer.go_on(700, 710);
  EXPECT_EQ(last.asked_ns, 610);
  EXPECT_EQ(last.busy_ns, 0);
}

TEST(Consumer, TimeBetweenTwoEpochsIsNotItsOwn) {
  Consumer consumer;
  consumer.begin(0, {}, 0, std::make_shared<Left>(1));
  consumer.go_on(100, 200);
  consumer.begin(1, {1, 0}, 0, std::make_shared<Left>(1));
  const Consumer::Turn turn = consumer.go_on(5000, 5100);
  EXPECT_EQ(turn.asked_ns, 5000);
  EXPECT_EQ(turn.busy_ns, 0);
}

}  // namespace
}  // namespace headrace::detail
