#include "core/memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/hardware/machine.h"

namespace headrace {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uintptr_t address(const void* block) {
  return reinterpret_cast<std::uintptr_t>(block);
}

TEST(Arena, BlocksAreAlignedWritableAndLieInIt) {
  Arena arena{64 * kMiB};
  std::vector<void*> blocks;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, 3 * kMiB + 1}) {
    blocks.push_back(arena.allocate(bytes));
    ASSERT_NE(blocks.back(), nullptr);
    EXPECT_EQ(address(blocks.back()) % Arena::kAlignment, 0U);
    EXPECT_TRUE(arena.owns(blocks.back()));
    std::memset(blocks.back(), 7, bytes);
  }
  EXPECT_EQ(arena.statistics().held, 3 * 64 + 128 + 3 * kMiB + 64);
  for (void* block : blocks) arena.free(block);
  EXPECT_EQ(arena.statistics().held, 0U);
  EXPECT_EQ(arena.statistics().most_held, 3 * 64 + 128 + 3 * kMiB + 64);
  int elsewhere = 0;
  EXPECT_FALSE(arena.owns(&elsewhere));
  EXPECT_FALSE(arena.owns(nullptr));
}

TEST(Arena, WhatIsFreedJoinsItsNeighboursAndServesAgain) {
  Arena arena{64 * kMiB};
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(arena.allocate(kMiB));
  const std::size_t reached = arena.statistics().reached;
  for (const std::size_t i : {1U, 3U, 2U}) arena.free(blocks[i]);  // The last one joins both.
  EXPECT_EQ(arena.statistics().free_ranges, 1U);
  void* const large = arena.allocate(3 * kMiB);
  EXPECT_EQ(large, blocks[1]);
  EXPECT_EQ(arena.statistics().reached, reached);
  arena.free(large);
  for (const std::size_t i : {0U, 4U, 5U}) arena.free(blocks[i]);
  EXPECT_EQ(arena.statistics().free_ranges, 1U);
  EXPECT_EQ(arena.statistics().reached, 6 * kMiB);
}

TEST(Arena, TakesTheSmallestRangeThatHoldsABlockAndTheLowestOfEqualOnes) {
  Arena arena{64 * kMiB};
  std::vector<void*> blocks;
  for (const std::size_t mib : {4U, 1U, 2U, 1U, 2U, 1U}) blocks.push_back(arena.allocate(mib * kMiB));
  for (const std::size_t i : {0U, 4U, 2U}) arena.free(blocks[i]);
  EXPECT_EQ(arena.allocate(kMiB + kMiB / 2), blocks[2]);
  EXPECT_EQ(arena.allocate(2 * kMiB), blocks[4]);
  EXPECT_EQ(arena.allocate(2 * kMiB), blocks[0]);
  for (void* block : {blocks[2], blocks[4], blocks[0], blocks[1], blocks[3], blocks[5]}) arena.free(block);
}

// As the activations of a step are: the same requests in the same order, among blocks that live on.
TEST(Arena, ReachesNoFurtherAfterTheFirstOfEqualSteps) {
  Arena arena{256 * kMiB};
  std::mt19937 draw{1};
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 40; ++i) sizes.push_back(16 * 1024 + draw() % (2 * kMiB));
  std::vector<void*> kept;
  const auto step = [&] {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks.push_back(arena.allocate(sizes[i]));
      if (i % 3 == 2) arena.free(std::exchange(blocks[i - 1], nullptr));
    }
    for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
      if (*it != nullptr) arena.free(*it);
    }
  };
  step();
  for (int i = 0; i < 8; ++i) kept.push_back(arena.allocate(100'000));  // An optimizer's state.
  step();
  const std::size_t reached = arena.statistics().reached;
  for (int i = 0; i < 50; ++i) step();
  EXPECT_EQ(arena.statistics().reached, reached);
  for (void* block : kept) arena.free(block);
}

TEST(Arena, RandomBlocksNeverOverlapAndKeepWhatWasWritten) {
  Arena arena{64 * kMiB};
  struct Block {
    std::uint8_t* begin;
    std::size_t bytes;
    std::uint8_t value;
  };
  std::vector<Block> blocks;
  std::mt19937 draw{2};
  const auto end_one = [&](std::size_t place) {
    const Block block = blocks[place];
    EXPECT_TRUE(std::all_of(block.begin, block.begin + block.bytes, [&](auto byte) { return byte == block.value; }));
    arena.free(block.begin);
    blocks[place] = blocks.back();
    blocks.pop_back();
  };
  for (int i = 0; i < 3000; ++i) {
    const std::size_t bytes = 1 + draw() % 40'000;
    auto* const begin = static_cast<std::uint8_t*>(arena.allocate(bytes));
    ASSERT_NE(begin, nullptr);
    const auto value = static_cast<std::uint8_t>(draw());
    std::memset(begin, value, bytes);
    blocks.push_back({begin, bytes, value});
    while (blocks.size() > 200 || (draw() % 3 == 0 && !blocks.empty())) end_one(draw() % blocks.size());
    if (i % 500 == 0) arena.give_pages_back();
  }
  while (!blocks.empty()) end_one(blocks.size() - 1);
  EXPECT_EQ(arena.statistics().free_ranges, 1U);
}

TEST(Arena, GivesNothingWhereNothingHoldsIt) {
  Arena arena{1};  // The least there is: 64 MiB.
  EXPECT_EQ(arena.capacity(), 64 * kMiB);
  EXPECT_EQ(arena.allocate(0), nullptr);
  EXPECT_EQ(arena.allocate(65 * kMiB), nullptr);
  EXPECT_EQ(arena.allocate(~std::size_t{0}), nullptr);
  void* const most = arena.allocate(60 * kMiB);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(arena.allocate(5 * kMiB), nullptr);
  void* const rest = arena.allocate(4 * kMiB);
  EXPECT_NE(rest, nullptr);
  arena.free(most);
  arena.free(rest);
  void* const all = arena.allocate(64 * kMiB);
  EXPECT_NE(all, nullptr);
  arena.free(all);
}

TEST(ArenaDeathTest, AForeignOrFreedBlockEndsTheProcessWithASentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Arena arena{64 * kMiB};
  int elsewhere = 0;
  EXPECT_DEATH(arena.free(&elsewhere), "is no block of this arena");
  void* const block = arena.allocate(100);
  arena.free(block);
  EXPECT_DEATH(arena.free(block), "is no block of this arena");
}

#if !defined(__SANITIZE_THREAD__)  // Its shadow of what was touched stays.
TEST(Arena, PagesStayUntilTheyAreGivenBack) {
  constexpr std::size_t kBytes = 48 * kMiB;
  constexpr auto kMost = static_cast<std::int64_t>(kBytes - 4 * kMiB);
  Arena arena{256 * kMiB};
  const auto touch = [&] {
    void* const block = arena.allocate(kBytes);
    std::memset(block, 1, kBytes);
    arena.free(block);
  };
  const std::int64_t before = resident_memory().value();
  touch();
  EXPECT_GT(resident_memory().value() - before, kMost);
  arena.give_pages_back();
  EXPECT_LT(resident_memory().value() - before, kMost / 4);

  touch();
  arena.keep_pages(false);  // With what was kept before.
  EXPECT_LT(resident_memory().value() - before, kMost / 4);
  touch();
  EXPECT_LT(resident_memory().value() - before, kMost / 4);
  arena.keep_pages(true);
  touch();
  EXPECT_GT(resident_memory().value() - before, kMost);
}
#endif

TEST(Arena, ThreadsTakeAndFreeAtOnce) {
  Arena arena{256 * kMiB};
  std::atomic<int> wrong{0};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&arena, &wrong, thread] {
      std::mt19937 draw{static_cast<unsigned>(thread)};
      std::vector<std::pair<std::uint8_t*, std::size_t>> blocks;
      for (int i = 0; i < 400; ++i) {
        const std::size_t bytes = 1 + draw() % 20'000;
        auto* const begin = static_cast<std::uint8_t*>(arena.allocate(bytes));
        std::memset(begin, thread, bytes);
        blocks.emplace_back(begin, bytes);
        if (i % 100 == 50) arena.give_pages_back();
        if (blocks.size() < 10) continue;
        const auto [first, size] = blocks.front();
        wrong += static_cast<int>(std::count_if(first, first + size, [&](int byte) { return byte != thread; }));
        arena.free(first);
        blocks.erase(blocks.begin());
      }
      for (const auto& block : blocks) arena.free(block.first);
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(arena.statistics().held, 0U);
  EXPECT_EQ(arena.statistics().free_ranges, 1U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // Whose shadow alone is larger.
TEST(Arena, TakesFewerAddressesWhereTheyAreLimited) {
  const auto limited = [] {
    const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    Arena arena{std::size_t{1} << 40};
    void* const block = arena.allocate(kMiB);
    const bool good = arena.capacity() >= 64 * kMiB && arena.capacity() < std::size_t{4} << 30 && block != nullptr;
    if (block != nullptr) arena.free(block);
    ::_exit(good ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace headrace
