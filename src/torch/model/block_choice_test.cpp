#include "torch/model/detail/block_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace headrace {
namespace {

using ::testing::ElementsAre;

using Blocks = std::vector<bool>;

// Blocks one behind the other, each with an output of 10 bytes; `saved` includes it.
SavedBytes chain(const std::vector<std::int64_t>& saved, std::int64_t outside = 7) {
  SavedBytes bytes{.blocks = {}, .outside = outside};
  for (const std::int64_t size : saved) bytes.blocks.push_back({size, 10});
  return bytes;
}

Blocks all(std::size_t count) {
  return Blocks(count, true);
}

TEST(BlockChoice, KeepsWhatABlockSavedOrItsOutput) {
  const SavedBytes bytes = chain({100, 200, 50});
  EXPECT_EQ(bytes_at_end(bytes, {false, false, false}), 7 + 100 + 200 + 50);
  EXPECT_EQ(bytes_at_end(bytes, {true, false, true}), 7 + 10 + 200 + 10);
  EXPECT_EQ(bytes_at_end(bytes, all(3)), 7 + 30);
}

TEST(BlockChoice, PeakIsTheEndOfTheForwardOrABlockThatWasComputedAgain) {
  const SavedBytes bytes = chain({100, 200, 50});
  EXPECT_EQ(peak_bytes(bytes, {false, false, false}), 7 + 350);
  EXPECT_EQ(peak_bytes(bytes, {true, false, true}), 7 + 10 + 200 + 50);  // The last again, where the second is kept.
  EXPECT_EQ(peak_bytes(bytes, all(3)), 7 + 10 + 200);                    // The second again, where the last is gone.
  EXPECT_EQ(peak_bytes(chain({}, 7), {}), 7);
}

TEST(BlockChoice, InputsInTheHostsMemoryAreKeptWhereANeighbourKeepsThem) {
  SavedBytes bytes = chain({100, 200, 50});
  bytes.input = 10;
  bytes.inputs_on_device = false;
  EXPECT_EQ(bytes_at_end(bytes, all(3)), 7 + 10);                          // The last output, which follows no block.
  EXPECT_EQ(bytes_at_end(bytes, {true, false, true}), 7 + 10 + 200 + 10);  // The second saves what it reads.
  EXPECT_EQ(bytes_at_end(bytes, {false, true, true}), 7 + 10 + 100 + 10);
  EXPECT_EQ(peak_bytes(bytes, all(3)), 7 + 10 + 200);  // Its input has come back.
}

TEST(BlockChoice, TakesThoseThatFreeTheMostAndNoMoreThanItMust) {
  const SavedBytes bytes = chain({40, 100, 100, 60}, 0);
  EXPECT_THAT(choose_blocks(bytes, 300).recomputed, ElementsAre(false, false, false, false));
  EXPECT_THAT(choose_blocks(bytes, 299).recomputed, ElementsAre(false, true, false, false));
  EXPECT_THAT(choose_blocks(bytes, 210).recomputed, ElementsAre(false, true, false, false));  // The earlier of two.
  EXPECT_THAT(choose_blocks(bytes, 209).recomputed, ElementsAre(false, true, true, false));
}

TEST(BlockChoice, LeavesOutWhatTurnsOutNotToBeNeeded) {
  // The second frees 100, but is what is held at most when it is computed again: the first has to go, and then
  // suffices.
  SavedBytes bytes = chain({90, 110}, 0);
  const BlockChoice choice = choose_blocks(bytes, 125);
  EXPECT_TRUE(choice.fits);
  EXPECT_THAT(choice.recomputed, ElementsAre(true, false));
  EXPECT_EQ(choice.peak_bytes, 10 + 110);
}

TEST(BlockChoice, OfABudgetThatCannotBeReachedIsTheFewestBlocksForTheLeast) {
  const SavedBytes bytes = chain({100, 100}, 5);
  const BlockChoice choice = choose_blocks(bytes, 50);
  EXPECT_FALSE(choice.fits);
  EXPECT_EQ(choice.peak_bytes, 5 + 10 + 100);
  EXPECT_THAT(choice.recomputed, ElementsAre(true, false));
  EXPECT_EQ(peak_bytes(bytes, choice.recomputed), choice.peak_bytes);
}

TEST(BlockChoice, NeverRecomputesWhatFreesNothing) {
  SavedBytes bytes = chain({100, 10}, 0);
  EXPECT_THAT(choose_blocks(bytes, 1).recomputed, ElementsAre(true, false));
}

TEST(BlockChoice, FallsWithTheBudgetStepByStep) {
  const SavedBytes bytes = chain({100, 90, 80, 70, 60, 50}, 20);
  std::ptrdiff_t last = 0;
  for (std::int64_t budget = 480; budget >= 150; budget -= 30) {
    const BlockChoice choice = choose_blocks(bytes, budget);
    const auto count = std::accumulate(choice.recomputed.begin(), choice.recomputed.end(), std::ptrdiff_t{0});
    EXPECT_GE(count, last) << budget;
    EXPECT_TRUE(!choice.fits || choice.peak_bytes <= budget);
    last = count;
  }
  EXPECT_GT(last, 3);
}

}  // namespace
}  // namespace headrace
