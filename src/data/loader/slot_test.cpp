// The memory of batches: blocks that are kept, and within the same limit what ragged fields need.
#include "data/loader/detail/slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/fail.h"

namespace headrace::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kBatch = 4, kEnough = std::int64_t{1} << 30;

BatchLayout layout_of(FieldSpec field) {
  return {SampleFields{Schema{{std::move(field)}}}, std::nullopt, kBatch};
}
BatchLayout vectors() {
  return layout_of({.name = "x", .dtype = DType::f32, .shape = {300}});
}
BatchLayout boxes() {
  return layout_of({.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}});
}

// ---- Blocks ----

TEST(SlotPool, KeepsItsBlocksAndFreesThoseBeyondThem) {
  const auto pool = std::make_shared<SlotPool>(vectors(), 2, kEnough);
  const std::int64_t block = pool->batch_bytes();
  EXPECT_EQ(pool->allocated_bytes(), 2 * block) << "before there is a batch";
  std::vector<std::unique_ptr<Batch::Slot>> out;
  for (std::int64_t index = 0; index < 3; ++index) {
    out.push_back(pool->take(5, index, kBatch));
    EXPECT_EQ(out.back()->epoch, 5);
    EXPECT_EQ(out.back()->index, index);
    EXPECT_EQ(std::ssize(out.back()->sample_indices), kBatch);
  }
  EXPECT_EQ(pool->allocated_bytes(), 3 * block);
  for (auto& slot : out) pool->put_back(std::move(slot));
  pool->trim();
  EXPECT_EQ(pool->allocated_bytes(), 2 * block);
  pool->give_back();
  EXPECT_EQ(pool->allocated_bytes(), 0);
  pool->put_back(pool->take(6, 0, kBatch));
  EXPECT_EQ(pool->allocated_bytes(), block) << "as many as are needed again";
}

TEST(SlotPool, ASmallerBatchLiesAtTheFrontOfItsBlock) {
  const auto pool = std::make_shared<SlotPool>(vectors(), 1, kEnough);
  auto slot = pool->take(0, 0, kBatch);
  const BatchField& x = slot->fields[0];
  const std::byte* const start = x.bytes.data();
  slot->size = 3;
  pool->shrink(*slot);
  EXPECT_THAT(x.shape, ElementsAre(3, 300));
  EXPECT_EQ(x.bytes.data(), start);
  EXPECT_EQ(x.bytes.size(), 3 * 1200U);
  EXPECT_EQ(slot->valid.size(), 3U);
  pool->put_back(std::move(slot));
  EXPECT_EQ(pool->take(0, 1, kBatch)->fields[0].shape[0], kBatch) << "the next one is whole";
}

TEST(SlotPool, RefusesWhatTheLimitDoesNotHoldByBothNumbers) {
  const std::int64_t block = SlotPool(vectors(), 0, kEnough).batch_bytes();
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { SlotPool(vectors(), 3, 3 * block - 1); }),
              HasSubstr(fmt::format("data: 3 batches of {} bytes are {} bytes; the memory limit is {} bytes", block,
                                    3 * block, 3 * block - 1)));
  const auto pool = std::make_shared<SlotPool>(vectors(), 1, 2 * block);
  auto first = pool->take(0, 0, kBatch), second = pool->take(0, 1, kBatch);
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { pool->take(0, 2, kBatch); }),
              HasSubstr(fmt::format("no room for another batch of {} bytes: 2 are out", block)));
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { pool->set_kept(3); }), HasSubstr("data: 3 batches of "));
  pool->put_back(std::move(first));
  pool->put_back(pool->take(0, 2, kBatch));
  pool->put_back(std::move(second));
  EXPECT_EQ(pool->allocated_bytes(), 2 * block);
}

TEST(SlotPool, ABatchOutlivesItsLoaderWithItsMemory) {
  auto pool = std::make_shared<SlotPool>(boxes(), 1, kEnough);
  const std::weak_ptr<SlotPool> left = pool;
  const auto bytes = static_cast<std::size_t>(pool->batch_bytes());
  std::shared_ptr<Batch::Slot> batch = pool->hand_out(pool->take(0, 0, kBatch));
  pool->close();
  pool.reset();
  std::memset(batch->start, 7, bytes);  // A sanitizer would see it.
  EXPECT_FALSE(left.expired());
  batch.reset();
  EXPECT_TRUE(left.expired());
}

// ---- Values of ragged fields ----

// As many boxes, of this number each.
Sample sample_of(std::int64_t count, float number) {
  Sample sample{1};
  const std::vector<float> numbers(static_cast<std::size_t>(4 * count), number);
  sample.buffer(0).resize(numbers.size() * sizeof(float));
  if (count > 0) std::memcpy(sample.buffer(0).data(), numbers.data(), sample.buffer(0).size());
  sample[0].set_bytes(sample.buffer(0), std::array<std::int64_t, 2>{count, 4});
  return sample;
}

std::vector<Sample> pair_of(Sample first, Sample second) {
  std::vector<Sample> both;
  both.push_back(std::move(first));
  both.push_back(std::move(second));
  return both;
}

TEST(RaggedFields, LieInTheOrderOfTheSamplesWhateverOrderTheyCameIn) {
  const auto pool = std::make_shared<SlotPool>(boxes(), 1, kEnough);
  for (int batch = 0; batch < 2; ++batch) {  // Nothing is left of the one before.
    auto slot = pool->take(0, batch, kBatch);
    EXPECT_EQ(slot->ragged->add(2, pair_of(sample_of(2, 3), sample_of(1, 4))), 2U);
    EXPECT_FALSE(slot->ragged->completes(2));
    EXPECT_EQ(slot->ragged->add(0, pair_of(sample_of(1, 1), sample_of(0, 2))), 2U);
    EXPECT_TRUE(slot->ragged->completes(2));
    slot->ragged->seal(slot->fields);
    const BatchField& field = slot->fields[0];
    EXPECT_THAT(std::vector<std::int64_t>(field.offsets.begin(), field.offsets.end()), ElementsAre(0, 1, 1, 3, 4));
    EXPECT_THAT(field.shape, ElementsAre(4, 4));
    std::vector<float> found(field.bytes.size() / sizeof(float)), wanted(4, 1);
    std::memcpy(found.data(), field.bytes.data(), field.bytes.size());
    wanted.resize(12, 3);
    wanted.resize(16, 4);
    EXPECT_EQ(found, wanted);
    pool->put_back(std::move(slot));
  }
}

TEST(RaggedFields, TakeNoMoreThanTheLimitLeavesAndGiveItBack) {
  constexpr std::int64_t kRoom = 40 << 10;
  const std::int64_t limit = SlotPool(boxes(), 0, kEnough).batch_bytes() + kRoom;
  const auto pool = std::make_shared<SlotPool>(boxes(), 1, limit);
  auto slot = pool->take(0, 0, kBatch);
  EXPECT_EQ(slot->ragged->add(0, pair_of(sample_of(1000, 1), sample_of(100'000, 2))), 1U) << "the first fits";
  EXPECT_EQ(slot->ragged->bytes(), 16'000);
  EXPECT_EQ(slot->ragged->add(1, pair_of(sample_of(1, 2), sample_of(1, 3))), 2U) << "and small ones behind it";
  EXPECT_GT(pool->allocated_bytes(), limit - kRoom);
  EXPECT_LE(pool->allocated_bytes(), limit);
  pool->put_back(std::move(slot));
  EXPECT_EQ(pool->ragged_bytes(), 2 * 16'032) << "of a usual batch: as collected, and in order";
  pool->give_back();
  EXPECT_EQ(pool->allocated_bytes(), 0);
}

}  // namespace
}  // namespace headrace::detail
