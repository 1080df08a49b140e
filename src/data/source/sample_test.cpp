#include <gtest/gtest.h>
#include <headrace/sample.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "data/loader/allocation_count.h"

namespace headrace {
namespace {

TEST(Sample, BuffersGrowWithoutMovingThoseOfOtherFields) {
  Sample sample{3};
  sample.buffer(1).assign(5, 7);
  const std::uint8_t* const at = sample.buffer(1).data();
  sample.buffer(0).resize(1 << 16);
  sample.buffer(2).resize(1 << 16);
  EXPECT_EQ(sample.buffer(1).data(), at);
  EXPECT_GE(sample.bytes(), 5 + 2 * (1 << 16));
}

TEST(Sample, ReadIntoAgainItAllocatesNothing) {
  Sample sample;
  const auto read = [&sample](std::size_t bytes) {
    sample.clear();
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    if (buffer.size() < bytes) buffer.resize(bytes);
    sample.image().set_file(std::span{buffer}.first(bytes));
    sample.set_label(3);
  };
  read(4096);
  const std::int64_t before = AllocationCount::allocations();
  for (std::size_t bytes = 0; bytes <= 4096; ++bytes) read(bytes);
  EXPECT_EQ(AllocationCount::allocations(), before);
}

TEST(Sample, OnceClearedItHasNoFieldAndItsMemory) {
  Sample sample;
  sample.buffer(0).assign(100, 1);
  sample.image().set_file(sample.buffer(0));
  sample.set_label(3);
  sample.clear();
  for (const Payload& payload : sample.payloads()) EXPECT_EQ(payload.kind, Payload::Kind::absent);
  EXPECT_GE(sample.bytes(), 100);
  sample.release();
  EXPECT_EQ(sample.bytes(), 0);
}

TEST(Sample, AMovedOnesPayloadsPointWhereTheyDid) {
  Sample sample;
  sample.buffer(0).assign(3, 9);
  sample.image().set_pixels(sample.buffer(0), 1, 1, 3);
  sample.set_label(4);
  const Sample moved = std::move(sample);
  EXPECT_EQ(moved.size(), 2U);
  EXPECT_EQ(moved.label(), 4);
  EXPECT_TRUE(std::ranges::equal(moved.image().bytes, std::array{9, 9, 9}));
}

}  // namespace
}  // namespace headrace
