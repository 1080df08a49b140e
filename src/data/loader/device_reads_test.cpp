// A loop that has a device copy its batches and does not wait for that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/memory/fake_device.h"
#include "data/loader/detail/slot.h"
#include "data/loader/testing.h"
#include "data/source/waiting_source.h"

namespace headrace {
namespace {

using testing::HasSubstr;

using Images = std::vector<std::vector<std::byte>>;  // Of each batch.

std::shared_ptr<const Source> forty_images() {
  return std::make_shared<WaitingSource>(40, [](std::int64_t, std::int64_t) { return std::chrono::nanoseconds(0); });
}

Images images_of(Epoch epoch) {
  Images all;
  while (const auto batch = epoch.next()) {
    const auto bytes = batch->field("image").bytes;
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

// Each batch is dropped as soon as its copy is queued. The device is up to `behind` copies behind, and goes on while
// the loop waits for a batch.
Images copies_of(Epoch epoch, FakeDevice& device, std::size_t behind) {
  while (const auto batch = epoch.next([&device] { device.make(1); })) {
    device.queue(batch->field("image").bytes);
    while (device.pending() > behind) device.make(1);
  }
  device.make_all();
  return device.copies();
}

TEST(DeviceReads, CopiesHaveTheBytesOfTheBatchesHoweverLateTheyAreMade) {
  const auto source = forty_images();
  Loader plain{source, options_of(4, 0), 5, true};
  const Images expected = images_of(plain.epoch(0));
  ASSERT_EQ(expected.size(), 10U);
  for (const std::int64_t threads : {0, 2}) {
    for (const std::size_t behind : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
      FakeDevice device;
      Loader loader{source, options_of(4, threads), 5, true};
      const std::int64_t bytes = loader.statistics().pool_bytes;
      EXPECT_EQ(copies_of(loader.epoch(0), device, behind), expected) << threads << " threads, behind " << behind;
      EXPECT_EQ(loader.statistics().pool_bytes, bytes) << "it waits for a block and allocates none";
      EXPECT_EQ(device.marks(), 10);
      EXPECT_EQ(device.waits(), 0);
    }
  }
}

TEST(DeviceReads, ARequestIsServedAsSoonAsABlockIsRead) {
  const auto source = forty_images();
  Loader plain{source, options_of(4, 0), 5, true};
  const Images expected = images_of(plain.epoch(0));
  FakeDevice device;
  Loader loader{source, options_of(4, 1), 5, true};
  auto epoch = loader.epoch(0);
  for (;;) {
    BatchFuture future = epoch.request();
    while (future.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) device.make(1);
    const auto batch = future.get();
    if (!batch) break;
    device.queue(batch->field("image").bytes);
  }
  device.make_all();
  EXPECT_EQ(device.copies(), expected);
}

TEST(DeviceReads, OnlyBatchesThatWereDeliveredAreMarked) {
  FakeDevice device;
  Loader loader{forty_images(), options_of(4, 2), 5, true};
  for (std::int64_t i = 0; i < 3; ++i) {
    auto epoch = loader.epoch(i);
    EXPECT_TRUE(epoch.next().has_value());
    EXPECT_EQ(device.marks(), i + 1);
  }  // Left, with more of them in the making.
  EXPECT_EQ(device.marks(), 3);
}

TEST(DeviceReads, BatchesThatDieWhileAGraphIsCapturedAreRetiredAndTold) {
  FakeDevice device;
  Loader loader{forty_images(), options_of(4, 0), 5, true};
  const std::int64_t bytes = loader.statistics().pool_bytes;
  auto epoch = loader.epoch(0);
  device.set_capturing(true);
  EXPECT_TRUE(epoch.next().has_value());
  device.set_capturing(false);
  EXPECT_EQ(loader.statistics().retired_batches, 1);
  EXPECT_EQ(loader.explain().retired_batches, 1);
  EXPECT_EQ(loader.statistics().pool_bytes, bytes) << "its memory is still there";
  std::int64_t further = 0;
  while (epoch.next()) ++further;
  EXPECT_EQ(further, 9);
  EXPECT_EQ(loader.statistics().retired_batches, 1);
}

// ---- The pool of slots ----

detail::BatchLayout vectors() {
  const FieldSpec field{.name = "x", .dtype = DType::f32, .shape = {300}};
  return {detail::SampleFields{Schema{{field}}}, std::nullopt, 4};
}

TEST(DeviceReads, NoSlotIsGivenWhileAllBlocksThatAreKeptAreRead) {
  FakeDevice device;
  const auto pool = std::make_shared<detail::SlotPool>(vectors(), 1, std::int64_t{1} << 30);
  auto batch = pool->hand_out(pool->take(0, 0, 4));
  device.queue(batch->block.bytes());
  batch.reset();
  EXPECT_FALSE(pool->can_take());
  EXPECT_EQ(pool->take(0, 1, 4), nullptr);
  EXPECT_EQ(pool->allocated_bytes(), pool->batch_bytes());
  device.make_all();
  EXPECT_TRUE(pool->can_take());
  auto next = pool->take(0, 1, 4);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(pool->can_take()) << "one that the caller keeps is no reason to wait";
  pool->put_back(std::move(next));
  pool->close();
  EXPECT_TRUE(pool->can_take()) << "nobody waits for a pool that is closed";
}

TEST(DeviceReads, RetiredBlocksAreReplacedWithinTheLimit) {
  FakeDevice device;
  const std::int64_t block = detail::SlotPool(vectors(), 0, std::int64_t{1} << 30).batch_bytes();
  const auto pool = std::make_shared<detail::SlotPool>(vectors(), 2, 3 * block);
  device.set_capturing(true);
  pool->hand_out(pool->take(0, 0, 4)).reset();
  device.set_capturing(false);
  EXPECT_EQ(pool->allocated_bytes(), 2 * block);
  auto a = pool->take(0, 1, 4), b = pool->take(0, 2, 4);
  EXPECT_EQ(pool->allocated_bytes(), 3 * block);
  pool->put_back(std::move(a));
  pool->put_back(std::move(b));
  pool->trim();
  EXPECT_EQ(pool->allocated_bytes(), 3 * block) << "two are kept beside it";
}

TEST(DeviceReads, AtTheLimitTheErrorNamesWhatIsRetired) {
  FakeDevice device;
  const std::int64_t block = detail::SlotPool(vectors(), 0, std::int64_t{1} << 30).batch_bytes();
  const auto pool = std::make_shared<detail::SlotPool>(vectors(), 1, 2 * block);
  device.set_capturing(true);
  for (std::int64_t index = 0; index < 2; ++index) pool->hand_out(pool->take(0, index, 4)).reset();
  EXPECT_EQ(pool->retired(), 2);
  EXPECT_EQ(pool->allocated_bytes(), 2 * block);
  EXPECT_THAT(
      error_of(ErrorCode::out_of_memory, [&] { pool->take(0, 2, 4); }),
      HasSubstr("0 are out, most of them kept by the caller, and 2 are not used again: when they were released, "
                "a CUDA graph was captured or CUDA reported an error; the memory limit is "));
}

}  // namespace
}  // namespace headrace
