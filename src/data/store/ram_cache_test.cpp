#include "data/store/ram_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::int64_t key, std::int64_t size) {
  Bytes bytes(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(key * 31 + static_cast<std::int64_t>(i));
  return bytes;
}

Bytes found(const RamCache& cache, std::int64_t key) {
  const auto bytes = cache.find(key);
  return bytes ? Bytes(bytes->begin(), bytes->end()) : Bytes{};
}

TEST(RamCache, GivesBackWhatWasAdmittedFromItsParts) {
  RamCache cache{10, 1 << 20};
  EXPECT_FALSE(cache.find(3).has_value());
  const Bytes head = bytes_of(1, 12), body = bytes_of(2, 1000);
  EXPECT_TRUE(cache.admit(3, {head, body}));
  Bytes whole = head;
  whole.insert(whole.end(), body.begin(), body.end());
  EXPECT_EQ(found(cache, 3), whole);
  EXPECT_FALSE(cache.find(2).has_value());
  EXPECT_TRUE(cache.admit(0, {Bytes{}}));
  EXPECT_TRUE(cache.find(0).has_value());
  EXPECT_EQ(cache.entries(), 2);
  EXPECT_FALSE(cache.admit(3, {body}));  // It is here.
  EXPECT_EQ(found(cache, 3), whole);
  EXPECT_EQ(cache.entries(), 2);
}

TEST(RamCache, IsFullAtItsBoundAndStaysSo) {
  constexpr std::int64_t kBound = 100'000;
  RamCache cache{1000, kBound, 16'000};
  std::int64_t admitted = 0;
  for (std::int64_t key = 0; key < 1000; ++key) {
    const bool room = cache.has_room(1000);
    EXPECT_EQ(cache.admit(key, {bytes_of(key, 1000)}), room);
    if (room) ++admitted;
  }
  EXPECT_EQ(admitted, 5 * 15 + 11);  // Of 1,024 bytes each: five slabs, and one of the 12,000 bytes that are left.
  EXPECT_EQ(cache.entries(), admitted);
  EXPECT_LE(cache.bytes(), kBound);
  EXPECT_GE(cache.bytes(), admitted * 1000 + 8000);
  for (std::int64_t key = 0; key < 1000; ++key) {
    EXPECT_EQ(found(cache, key), key < admitted ? bytes_of(key, 1000) : Bytes{});
  }
}

TEST(RamCache, AnEntryLargerThanASlabHasOneOfItsOwn) {
  RamCache cache{10, 1 << 20, 4096};
  EXPECT_TRUE(cache.admit(0, {bytes_of(0, 10)}));
  EXPECT_TRUE(cache.admit(1, {bytes_of(1, 100'000)}));
  EXPECT_TRUE(cache.admit(2, {bytes_of(2, 10)}));
  for (const std::int64_t key : {0, 1, 2}) EXPECT_EQ(found(cache, key), bytes_of(key, key == 1 ? 100'000 : 10));
  EXPECT_FALSE(cache.has_room(2 << 20));
  EXPECT_FALSE(cache.admit(3, {bytes_of(3, 2 << 20)}));
}

TEST(RamCache, ABoundBelowItsTableHoldsNothing) {
  RamCache cache{1000, 10};
  EXPECT_FALSE(cache.has_room(0));
  EXPECT_FALSE(cache.admit(0, {Bytes{}}));
  EXPECT_EQ(cache.entries(), 0);
}

// A slab that no system has.
TEST(RamCache, MemoryThatTheSystemRefusesMeansFull) {
  constexpr std::int64_t kImpossible = std::int64_t{1} << 60;
  RamCache cache{10, std::numeric_limits<std::int64_t>::max() / 2, kImpossible};
  EXPECT_TRUE(cache.has_room(1000));
  EXPECT_FALSE(cache.admit(0, {bytes_of(0, 1000)}));
  EXPECT_FALSE(cache.has_room(1000));
  EXPECT_FALSE(cache.find(0).has_value());
}

TEST(RamCache, WhatTheProcessPromisedIsCountedUntilItIsWritten) {
  const std::int64_t before = RamCache::promised_bytes();
  {
    RamCache first{0, 1 << 20}, second{10, 2 << 20};
    EXPECT_EQ(RamCache::promised_bytes() - before, (3 << 20) - second.bytes());
    EXPECT_TRUE(second.admit(0, {bytes_of(0, 100'000)}));
    EXPECT_EQ(RamCache::promised_bytes() - before, (3 << 20) - second.bytes());
  }
  EXPECT_EQ(RamCache::promised_bytes(), before);
}

TEST(RamCache, ThreadsAdmitAndFindTheSameKeysAtOnce) {
  constexpr std::int64_t kKeys = 2000;
  RamCache cache{kKeys, 1 << 20, 1 << 16};
  std::atomic<std::int64_t> admitted = 0;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::int64_t i = 0; i < kKeys; ++i) {
          const std::int64_t key = thread % 2 == 0 ? i : kKeys - 1 - i;
          if (cache.admit(key, {bytes_of(key, 300)})) ++admitted;
          if (const auto bytes = cache.find(key)) {
            EXPECT_EQ(Bytes(bytes->begin(), bytes->end()), bytes_of(key, 300));
          }
        }
      });
    }
  }
  EXPECT_EQ(admitted, cache.entries());
  EXPECT_EQ(admitted, kKeys);
}

}  // namespace
}  // namespace headrace
