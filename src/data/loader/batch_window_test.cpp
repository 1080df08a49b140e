#include "data/loader/detail/batch_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/fail.h"
#include "data/loader/testing.h"
#include "data/source/waiting_source.h"
#include "data/transform/plan.h"

namespace headrace::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kEpoch = 3;

// A window over 10 samples in batches of 4, which nobody fills: a chunk is finished by saying so.
class BatchWindowOfTen : public testing::Test {
 protected:
  explicit BatchWindowOfTen(std::int64_t samples = 10, std::int64_t chunk_max = kChunkMax)
      : source(samples, nullptr), window(4, /*depth=*/3, chunk_max) {}

  void begin(std::int64_t first = 0, std::int64_t memory_limit = std::int64_t{1} << 20) {
    slots = std::make_shared<SlotPool>(layout, 1, memory_limit);
    const BatchSampler batch_sampler{order.positions(), options, last_batch, 4 * first};
    window.begin(std::unique_ptr<Pass>(new Pass{{nullptr, plan.first(), options, 1, kEpoch, nullptr},
                                                reader,
                                                OnCorrupt::fail,
                                                EpochOrder{order, kEpoch},
                                                batch_sampler,
                                                layout,
                                                plan,
                                                nullptr}),
                 first, batch_sampler.end_batch());
  }
  void TearDown() override {
    window.end(*slots);
    EXPECT_FALSE(window.has_pass());
    EXPECT_TRUE(window.front_is_decided());
  }

  // All chunks that there are now, as a loader takes them.
  std::vector<Claim> claim_all(std::int64_t depth, std::int64_t workers = 1) {
    std::vector<Claim> claims;
    while (window.can_claim(depth) && (window.has_unclaimed() || window.open(*slots))) {
      claims.push_back(window.claim(depth, workers));
    }
    return claims;
  }
  void finish(const Claim& claim, std::int64_t zeroed = 0) {
    window.finish(claim, {.samples = claim.count, .zeroed = zeroed});
  }
  // After `made` of its samples, and names the position in its text.
  void fail_at(const Claim& claim, std::int64_t made) {
    const std::int64_t position = claim.slot->index * 4 + claim.first + made;
    const Error error{ErrorCode::io, fmt::format("position {}", position)};
    window.finish(claim, {.samples = made});
    window.note_failure(std::make_exception_ptr(error), position);
  }
  std::string failure_text() const {
    return error_of(ErrorCode::io, [this] { std::rethrow_exception(window.failure()); });
  }
  std::int64_t stop_at() const { return window.pass().stop_at.load(); }
  // Hands the front out; its index.
  std::int64_t take_front() {
    auto slot = window.take_front();
    const std::int64_t index = slot->index;
    slots->put_back(std::move(slot));
    return index;
  }

  const WaitingSource source;
  const DataOptions options = [] {
    DataOptions in_order = options_of(4, 0);
    in_order.shuffle = false;
    return in_order;
  }();
  LastBatch last_batch = LastBatch::keep;
  const SampleReader reader{source};
  const Order order{source, options, 1, true};
  const transform::Plan plan{{}, Schema::image_and_labels(1, 1, 1), PixelLayout::nchw};
  const BatchLayout layout{SampleFields{source.info().schema}, ImagePlace{{1, 4, 4}, PixelType::f32, PixelLayout::nchw},
                           4};
  std::shared_ptr<SlotPool> slots;
  BatchWindow window;
};

using Chunk = std::array<std::int64_t, 3>;  // Batch, first sample, count.

std::vector<Chunk> chunks_of(const std::vector<Claim>& claims) {
  std::vector<Chunk> chunks;
  for (const Claim& claim : claims) chunks.push_back({claim.slot->index, claim.first, claim.count});
  return chunks;
}

TEST_F(BatchWindowOfTen, ClaimsInOrderAndStopsAtTheFirstFailure) {
  begin();
  // Two chunks for each of two workers in a window of 12 places.
  const std::vector<Claim> claims = claim_all(/*depth=*/3, /*workers=*/2);
  EXPECT_THAT(chunks_of(claims),
              ElementsAre(Chunk{0, 0, 3}, Chunk{0, 3, 1}, Chunk{1, 0, 3}, Chunk{1, 3, 1}, Chunk{2, 0, 2}));
  EXPECT_EQ(window.working(), 5);
  fail_at(claims[2], 1);  // Position 5,
  fail_at(claims[1], 0);  // then position 3, which comes before it,
  fail_at(claims[3], 0);  // then position 7, which is not wanted any more.
  EXPECT_EQ(stop_at(), 3);
  EXPECT_EQ(failure_text(), "position 3");
  EXPECT_TRUE(window.is_stopping());
  EXPECT_FALSE(window.front_is_decided());  // The first chunk is out, and may fail at a position before it.
  fail_at(claims[0], 2);
  EXPECT_EQ(failure_text(), "position 2");
  EXPECT_FALSE(window.front_is_decided());
  finish(claims[4]);
  EXPECT_TRUE(window.front_is_decided());
  EXPECT_FALSE(window.front_is_ready());
  EXPECT_FALSE(window.can_claim(3));
}

class BatchWindowOfPairs : public BatchWindowOfTen {
 protected:
  BatchWindowOfPairs() : BatchWindowOfTen(10, /*chunk_max=*/2) {}
};

TEST_F(BatchWindowOfPairs, NoChunkIsLargerThanTold) {
  begin();
  const std::vector<Claim> claims = claim_all(/*depth=*/3, /*workers=*/1);
  EXPECT_THAT(chunks_of(claims),
              ElementsAre(Chunk{0, 0, 2}, Chunk{0, 2, 2}, Chunk{1, 0, 2}, Chunk{1, 2, 2}, Chunk{2, 0, 2}));
  for (const Claim& claim : claims) finish(claim);
}

TEST_F(BatchWindowOfTen, NothingIsClaimedBehindAFailure) {
  begin();
  const std::vector<Claim> claims = claim_all(/*depth=*/1);
  ASSERT_EQ(claims.size(), 2U);
  EXPECT_TRUE(window.has_unopened());
  fail_at(claims[1], 0);
  EXPECT_FALSE(window.has_unopened());
  EXPECT_FALSE(window.can_claim(3));
  finish(claims[0]);
  EXPECT_TRUE(window.front_is_decided());
  EXPECT_EQ(failure_text(), "position 2");
}

TEST_F(BatchWindowOfTen, OpensNoMoreBatchesThanItsDepthAndNoneBehindTheLast) {
  begin();
  for (const Claim& claim : claim_all(/*depth=*/2)) finish(claim);
  EXPECT_EQ(window.whole_batches(), 2);
  EXPECT_TRUE(window.has_unopened());
  EXPECT_FALSE(window.front_is_last());
  EXPECT_EQ(take_front(), 0);
  const std::vector<Claim> last = claim_all(/*depth=*/2);
  EXPECT_THAT(chunks_of(last), ElementsAre(Chunk{2, 0, 2}));  // 10 samples: the last batch has 2.
  EXPECT_FALSE(window.has_unopened());
  EXPECT_EQ(take_front(), 1);
  EXPECT_FALSE(window.front_is_ready());
  finish(last.front());
  EXPECT_TRUE(window.front_is_ready());
  EXPECT_TRUE(window.front_is_last());
  EXPECT_EQ(take_front(), 2);
  EXPECT_THAT(claim_all(/*depth=*/2), IsEmpty());
}

TEST_F(BatchWindowOfTen, ABatchWithoutMemoryIsTheFailureOfItsFirstPosition) {
  begin(/*first=*/0, static_cast<std::int64_t>(layout.block_bytes));
  const std::vector<Claim> claims = claim_all(/*depth=*/3);
  EXPECT_THAT(chunks_of(claims), ElementsAre(Chunk{0, 0, 4}));
  EXPECT_EQ(stop_at(), 4);
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { std::rethrow_exception(window.failure()); }),
              HasSubstr("no room for another batch"));
  finish(claims.front());
  EXPECT_TRUE(window.front_is_ready());  // It lies before the failure.
}

TEST_F(BatchWindowOfTen, AWholeBatchGoesBeforeThoseThatAreNot) {
  begin();
  const std::vector<Claim> claims = claim_all(/*depth=*/3);
  ASSERT_EQ(claims.size(), 3U);
  finish(claims[1]);
  EXPECT_FALSE(window.front_is_ready());
  window.bring_forward(*claims[1].slot);
  EXPECT_TRUE(window.front_is_ready());
  finish(claims[2]);
  window.bring_forward(*claims[2].slot);
  finish(claims[0]);
  EXPECT_EQ(take_front(), 1);
  EXPECT_EQ(take_front(), 2);
  EXPECT_EQ(take_front(), 0);
}

TEST_F(BatchWindowOfTen, APassThatIsGivenUpHandsNothingOut) {
  begin();
  const std::vector<Claim> claims = claim_all(/*depth=*/2);
  finish(claims[0]);
  EXPECT_TRUE(window.front_is_ready());
  window.give_up();
  EXPECT_FALSE(window.front_is_ready());
  EXPECT_FALSE(window.front_is_decided());  // Somebody works.
  fail_at(claims[1], 0);
  EXPECT_TRUE(window.front_is_decided());
  EXPECT_EQ(window.failure(), nullptr);  // Which is not wanted any more.
}

TEST_F(BatchWindowOfTen, NoSampleIsSoundWhereAllOfAWholeEpochAreZeroed) {
  begin();
  auto claims = claim_all(/*depth=*/3);
  for (const Claim& claim : claims) finish(claim, claim.count);
  EXPECT_TRUE(window.no_sample_is_sound());
  EXPECT_EQ(window.zeroed(), 10);
  window.end(*slots);
  begin();
  claims = claim_all(/*depth=*/3);
  for (const Claim& claim : claims) finish(claim, claim.count - 1);
  EXPECT_FALSE(window.no_sample_is_sound());
  EXPECT_EQ(window.zeroed(), 7);
  window.end(*slots);
  begin(/*first=*/2);  // A few corrupt samples at an epoch's end are no reason to stop.
  claims = claim_all(/*depth=*/3);
  for (const Claim& claim : claims) finish(claim, claim.count);
  EXPECT_FALSE(window.no_sample_is_sound());
}

TEST_F(BatchWindowOfTen, BehindTheLastBatchStandsTheNextEpoch) {
  begin();
  const Place second = window.place_after(0), next = window.place_after(2);
  EXPECT_EQ(second.epoch, kEpoch);
  EXPECT_EQ(second.position, 4);
  EXPECT_EQ(next.epoch, kEpoch + 1);
  EXPECT_EQ(next.position, 0);
  EXPECT_EQ(window.end_batch(), 3);
}

// The same, where nobody knows how many samples there are.
class BatchWindowOfUnknown : public BatchWindowOfTen {
 protected:
  BatchWindowOfUnknown() : BatchWindowOfTen(kUnknownSize) {}

  // After `made` of its samples the source told how many the epoch has.
  void end_at(const Claim& claim, std::int64_t made, std::int64_t samples) {
    window.finish(claim, {.samples = made});
    window.note_end(samples);
  }

  // A pass of two workers that ends in the first chunk of its second batch: all before the end is made, and nothing
  // settled yet.
  void begin_and_end_at(std::int64_t samples) {
    begin();
    const std::vector<Claim> claims = claim_all(/*depth=*/2, /*workers=*/2);
    ASSERT_EQ(claims.size(), 4U);
    finish(claims[0]);
    finish(claims[1]);
    end_at(claims[2], samples - 4, samples);
    end_at(claims[3], 0, samples);
  }
};

TEST_F(BatchWindowOfUnknown, SettlesTheEndWhenAllBeforeItIsMade) {
  begin();
  const std::vector<Claim> claims = claim_all(/*depth=*/3, /*workers=*/2);
  ASSERT_EQ(claims.size(), 6U);  // Of 3 and 1 samples in each batch.
  end_at(claims[4], 0, 6);       // The third batch begins behind the end,
  end_at(claims[2], 2, 6);       // the second has two samples.
  EXPECT_FALSE(window.can_claim(3));
  EXPECT_FALSE(window.is_at_end());  // The first is out.
  finish(claims[0]);
  finish(claims[1]);
  EXPECT_TRUE(window.front_is_ready());
  end_at(claims[3], 0, 6);
  EXPECT_FALSE(window.is_at_end());
  end_at(claims[5], 0, 6);
  ASSERT_TRUE(window.is_at_end());
  EXPECT_EQ(window.ended_after(), 6);
  EXPECT_EQ(window.made(), 6);
  const Claim last = window.settle_end(*slots);
  EXPECT_THAT(chunks_of({last}), ElementsAre(Chunk{1, 0, 2}));
  EXPECT_EQ(last.slot->size, 2);
  EXPECT_EQ(take_front(), 0);
  EXPECT_FALSE(window.front_is_decided());  // The last is not sealed.
  finish(last);
  EXPECT_TRUE(window.front_is_ready());
  EXPECT_FALSE(window.front_is_last());  // Which the consumer learns when it asks for another.
  EXPECT_EQ(window.place_after(1).epoch, kEpoch);
  EXPECT_EQ(window.place_after(1).position, 6);
  EXPECT_EQ(take_front(), 1);
  EXPECT_TRUE(window.is_over());
  EXPECT_TRUE(window.front_is_decided());
  EXPECT_EQ(window.place_after(2).epoch, kEpoch + 1);
  EXPECT_EQ(window.place_after(2).position, 0);
  EXPECT_THAT(claim_all(/*depth=*/3), IsEmpty());
}

TEST_F(BatchWindowOfUnknown, ATailIsDroppedOrFilledUp) {
  last_batch = LastBatch::drop;
  begin_and_end_at(5);
  EXPECT_EQ(window.settle_end(*slots).slot, nullptr);
  EXPECT_EQ(take_front(), 0);
  EXPECT_TRUE(window.is_over());
  window.end(*slots);

  last_batch = LastBatch::pad;
  begin_and_end_at(5);
  EXPECT_EQ(window.settle_end(*slots).slot, nullptr);
  EXPECT_EQ(take_front(), 0);
  EXPECT_FALSE(window.is_over());
  EXPECT_FALSE(window.is_stopping());
  const std::vector<Claim> rest = claim_all(/*depth=*/2);
  EXPECT_THAT(chunks_of(rest), ElementsAre(Chunk{1, 1, 3}));
  finish(rest[0]);
  EXPECT_EQ(take_front(), 1);
  EXPECT_TRUE(window.is_over());
}

TEST_F(BatchWindowOfUnknown, AnEndBetweenTwoBatchesLeavesThemWhole) {
  begin_and_end_at(4);
  EXPECT_EQ(window.settle_end(*slots).slot, nullptr);
  EXPECT_EQ(window.end_batch(), 1);
  EXPECT_EQ(take_front(), 0);
  EXPECT_TRUE(window.is_over());
}

TEST_F(BatchWindowOfUnknown, OfAnEndAndAFailureTheFirstCounts) {
  begin();
  std::vector<Claim> claims = claim_all(/*depth=*/1, /*workers=*/2);
  ASSERT_EQ(claims.size(), 4U);
  end_at(claims[2], 0, 2);
  fail_at(claims[3], 0);  // Position 3, which is not there.
  EXPECT_EQ(window.failure(), nullptr);
  fail_at(claims[0], 0);
  finish(claims[1]);
  EXPECT_FALSE(window.is_at_end());
  EXPECT_EQ(failure_text(), "position 0");
  window.end(*slots);

  begin();
  claims = claim_all(/*depth=*/1, /*workers=*/2);
  fail_at(claims[2], 0);
  end_at(claims[1], 0, 1);
  finish(claims[0]);
  finish(claims[3]);
  EXPECT_TRUE(window.is_at_end());
  EXPECT_EQ(window.failure(), nullptr);
  window.give_up();
  EXPECT_FALSE(window.is_at_end());
}

}  // namespace
}  // namespace headrace::detail
