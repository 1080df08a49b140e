// Blocks that a device still reads when their last view dies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/memory/fake_device.h"
#include "core/memory/pool.h"

namespace headrace {
namespace {

constexpr std::size_t kBytes = 4096;

// Full of `value`, and lent.
BlockPool::Block filled(BlockPool& pool, int value) {
  BlockPool::Block block = pool.try_take();
  EXPECT_TRUE(block);
  std::memset(block.bytes().data(), value, block.bytes().size());
  block.lend();
  return block;
}

bool is_full_of(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) { return byte == std::byte(value); });
}

// A loop that has each block copied and drops it, with a device that is `behind` copies behind.
TEST(PageMarks, NoBlockIsFilledAnewBeforeItWasRead) {
  for (const std::size_t behind : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    constexpr int kBatches = 20;
    FakeDevice device;
    BlockPool pool{kBytes, 4};
    for (int batch = 0; batch < kBatches; ++batch) {
      auto block = filled(pool, batch);
      device.queue(block.bytes());
      block = {};
      while (device.pending() > behind) device.make(1);
    }
    device.make_all();
    const auto copies = device.copies();
    ASSERT_EQ(copies.size(), static_cast<std::size_t>(kBatches));
    for (int batch = 0; batch < kBatches; ++batch) {
      EXPECT_TRUE(is_full_of(copies[static_cast<std::size_t>(batch)], batch)) << batch << ", behind " << behind;
    }
    EXPECT_EQ(device.marks(), kBatches);
    EXPECT_LE(pool.allocated(), behind + 1);
    EXPECT_EQ(device.waits(), 0);
  }
}

TEST(PageMarks, AnotherBlockIsAllocatedUpToTheCapacityAndThenThereIsNone) {
  FakeDevice device;
  BlockPool pool{kBytes, 2};
  auto a = filled(pool, 1);
  const std::byte* const first = a.bytes().data();
  device.queue(a.bytes());
  a = {};
  EXPECT_EQ(pool.being_read(), 1U);
  EXPECT_EQ(pool.out(), 0U);
  auto b = filled(pool, 2);
  EXPECT_NE(b.bytes().data(), first);
  device.queue(b.bytes());
  b = {};
  EXPECT_FALSE(pool.can_take());
  EXPECT_FALSE(pool.try_take());
  EXPECT_EQ(pool.allocated(), 2U);
  EXPECT_EQ(pool.being_read(), 2U);
  device.make(1);
  EXPECT_TRUE(pool.can_take());
  const auto again = pool.try_take();
  EXPECT_EQ(again.bytes().data(), first) << "the one that is read";
  EXPECT_EQ(pool.being_read(), 1U);
  EXPECT_FALSE(pool.try_take());
  EXPECT_EQ(device.waits(), 0);
  device.make_all();
}

TEST(PageMarks, OnlyLentBlocksThatAreLockedAreMarked) {
  FakeDevice device;
  BlockPool pool{kBytes, 1};
  const std::byte* const first = pool.try_take().bytes().data();
  EXPECT_EQ(device.marks(), 0) << "it was not lent";
  EXPECT_EQ(filled(pool, 1).bytes().data(), first);
  EXPECT_EQ(device.marks(), 1);
  EXPECT_EQ(pool.try_take().bytes().data(), first) << "nothing was queued";
  EXPECT_EQ(device.marks(), 1) << "lent once, not for ever";

  install_page_lock({});
  BlockPool plain{kBytes, 1};
  filled(plain, 1);
  EXPECT_EQ(device.marks(), 1) << "its pages are not locked";
}

TEST(PageMarks, WhoeverKnowsThatAllIsReadGetsTheBlockBackAtOnce) {
  FakeDevice device;
  BlockPool pool{kBytes, 1};
  auto block = filled(pool, 1);
  const std::byte* const first = block.bytes().data();
  device.set_done(true);
  block = {};
  EXPECT_EQ(pool.being_read(), 0U);
  EXPECT_EQ(pool.try_take().bytes().data(), first);
}

TEST(PageMarks, AHandleThatWasMovedIsStillLent) {
  FakeDevice device;
  BlockPool pool{kBytes, 2};
  auto a = filled(pool, 1);
  device.queue(a.bytes());
  BlockPool::Block b{std::move(a)};
  BlockPool::Block c;
  c = std::move(b);
  EXPECT_EQ(device.marks(), 0);
  c = {};
  EXPECT_EQ(device.marks(), 1);
  EXPECT_EQ(pool.being_read(), 1U);
  device.make_all();
}

TEST(PageMarks, ABlockOfWhichNobodyCanTellIsRetiredWithItsBytes) {
  FakeDevice device;
  std::span<std::byte> bytes;
  {
    BlockPool pool{kBytes, 1};
    auto block = filled(pool, 7);
    bytes = block.bytes();
    device.set_capturing(true);
    block = {};
    device.set_capturing(false);
    EXPECT_EQ(pool.retired(), 1U);
    EXPECT_EQ(pool.out(), 0U);
    EXPECT_FALSE(pool.try_take()) << "it counts";
    pool.set_capacity(2);
    const auto other = filled(pool, 8);
    EXPECT_NE(other.bytes().data(), bytes.data());
    EXPECT_FALSE(pool.try_take());
  }
  EXPECT_TRUE(is_full_of(bytes, 7)) << "a graph may read it when there is no pool any more";
  EXPECT_EQ(device.locked(), 1U);
}

TEST(PageMarks, BlocksAboveTheCapacityAreFreedAfterTheyWereRead) {
  FakeDevice device;  // Which says so where one is unlocked before.
  BlockPool pool{kBytes, 2};
  auto a = filled(pool, 1), b = filled(pool, 2);
  device.queue(a.bytes());
  a = {};
  pool.set_capacity(0);
  EXPECT_EQ(pool.allocated(), 2U);
  device.queue(b.bytes());
  b = {};
  EXPECT_EQ(pool.allocated(), 2U);
  EXPECT_EQ(device.locked(), 2U);
  device.make(1);
  pool.set_capacity(0);
  EXPECT_EQ(pool.allocated(), 1U);
  device.make(1);
  EXPECT_FALSE(pool.try_take().bytes().empty()) << "read, and not freed yet";
  EXPECT_EQ(pool.allocated(), 0U) << "but then";
  EXPECT_EQ(device.locked(), 0U);
  EXPECT_EQ(device.waits(), 0);
}

TEST(PageMarks, TheEndOfAPoolWaitsForWhatIsStillRead) {
  FakeDevice device;
  std::optional<BlockPool> pool{std::in_place, kBytes, 2};
  auto home = filled(*pool, 1), later = filled(*pool, 2);
  device.queue(home.bytes());
  device.queue(later.bytes());
  home = {};
  pool.reset();
  EXPECT_EQ(device.locked(), 2U) << "a block is out";
  later = {};
  EXPECT_EQ(device.locked(), 0U);
  EXPECT_EQ(device.pending(), 0U);
  const auto copies = device.copies();
  EXPECT_TRUE(is_full_of(copies[0], 1) && is_full_of(copies[1], 2));
}

}  // namespace
}  // namespace headrace
