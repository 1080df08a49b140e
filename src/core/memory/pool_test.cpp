#include "core/memory/pool.h"

#include <headrace/error.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

// Sanitizers end the process where the system would say no, unless they are told to say it too.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace headrace {
namespace {

TEST(BlockPool, BlocksAreAlignedDistinctAndOfTheirSize) {
  BlockPool pool{100, 3};
  std::vector<BlockPool::Block> blocks;
  std::set<std::byte*> starts;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(pool.try_take());
    ASSERT_TRUE(blocks.back());
    EXPECT_EQ(blocks.back().bytes().size(), 100U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().bytes().data()) % 64, 0U);
    starts.insert(blocks.back().bytes().data());
    std::memset(blocks.back().bytes().data(), i, 100);
  }
  EXPECT_EQ(starts.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(blocks[static_cast<std::size_t>(i)].bytes()[99], std::byte(i));
}

TEST(BlockPool, GivesAnEmptyHandleWhenAllAreOut) {
  BlockPool pool{64, 1};
  auto block = pool.try_take();
  EXPECT_TRUE(block);
  const auto none = pool.try_take();
  EXPECT_FALSE(none);
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_EQ(pool.out(), 1U);
}

TEST(BlockPool, ReturnedBlocksAreUsedAgain) {
  BlockPool pool{64, 2};
  EXPECT_EQ(pool.allocated(), 0U);
  const std::byte* first = pool.try_take().bytes().data();
  EXPECT_EQ(pool.out(), 0U);
  EXPECT_EQ(pool.allocated(), 1U);
  EXPECT_EQ(pool.try_take().bytes().data(), first);
  EXPECT_EQ(pool.allocated(), 1U);
}

// What a process holds is then what it will hold, however few of them are out at once.
TEST(BlockPool, LargeBlocksGoRound) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  BlockPool pool{kLarge, 3};
  std::vector<const std::byte*> starts;
  {
    auto a = pool.try_take(), b = pool.try_take(), c = pool.try_take();
    for (const auto* block : {&a, &b, &c}) starts.push_back(block->bytes().data());
    a = {};  // They come home in this order.
    b = {};
  }
  for (int round = 0; round < 2; ++round) {
    for (const std::byte* start : starts) EXPECT_EQ(pool.try_take().bytes().data(), start);
  }
  EXPECT_EQ(pool.allocated(), 3U);
}

TEST(BlockPool, SmallerCapacityFreesNowAndAsBlocksComeHome) {
  BlockPool pool{64, 4};
  auto a = pool.try_take(), b = pool.try_take(), c = pool.try_take();
  c = {};
  EXPECT_EQ(pool.allocated(), 3U);
  pool.set_capacity(1);
  EXPECT_EQ(pool.allocated(), 2U);
  EXPECT_FALSE(pool.try_take());
  a = {};
  EXPECT_EQ(pool.allocated(), 1U);
  b = {};
  EXPECT_EQ(pool.allocated(), 1U);
  EXPECT_EQ(pool.out(), 0U);
  pool.set_capacity(2);
  auto d = pool.try_take(), e = pool.try_take();
  EXPECT_TRUE(d && e);
}

TEST(BlockPool, BlockOutlivesItsPool) {
  std::optional<BlockPool> pool{std::in_place, 4096, 2};
  auto block = pool->try_take(), home = pool->try_take();
  home = {};
  pool.reset();
  std::memset(block.bytes().data(), 7, block.bytes().size());
  EXPECT_EQ(block.bytes()[4095], std::byte{7});
}

TEST(BlockPool, MovingAHandleMovesTheBlock) {
  BlockPool pool{64, 2};
  auto a = pool.try_take(), b = pool.try_take();
  const std::byte* memory = b.bytes().data();
  a = std::move(b);
  EXPECT_EQ(pool.out(), 1U) << "the block that a held came home";
  EXPECT_EQ(a.bytes().data(), memory);
  const BlockPool::Block c{std::move(a)};
  EXPECT_EQ(c.bytes().data(), memory);
  EXPECT_EQ(pool.out(), 1U);
}

TEST(BlockPool, ThreadsTakeAndReturnWithoutLoss) {
  constexpr std::size_t kCapacity = 3;
  BlockPool pool{256, kCapacity};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 5000; ++i) {
        auto block = pool.try_take();
        if (!block) continue;
        std::memset(block.bytes().data(), t, 256);
        ASSERT_EQ(block.bytes()[255], std::byte(t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.out(), 0U);
  EXPECT_LE(pool.allocated(), kCapacity);
}

TEST(BlockPool, MemoryThatCannotBeHadIsAnErrorAndTheCountStays) {
  BlockPool pool{std::numeric_limits<std::size_t>::max() / 4, 1};
  try {
    pool.try_take();
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_EQ(pool.allocated(), 0U);
}

}  // namespace
}  // namespace headrace
