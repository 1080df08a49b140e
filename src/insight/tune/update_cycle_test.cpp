#include "insight/tune/update_cycle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {
namespace {

std::string repeated(std::string_view part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

// Places of the steps of D and G that end an iteration. A batch is taken before each step of the optimizers in
// `takes_batch`.
std::vector<std::size_t> ends_of(std::string_view steps, std::string_view takes_batch = "") {
  UpdateCycle cycle(2);
  std::int64_t batches = 0;
  std::vector<std::size_t> found;
  for (std::size_t place = 0; place < steps.size(); ++place) {
    if (takes_batch.find(steps[place]) != std::string_view::npos) ++batches;
    const std::size_t optimizer = steps[place] == 'G' ? 1 : 0;
    const bool foretold = cycle.ends_with(optimizer);
    const std::int64_t ended = cycle.step(optimizer, batches);
    if (!found.empty() && ended < 2) {  // More are told of at once when the order has been found.
      EXPECT_EQ(foretold, cycle.has_ended());
      EXPECT_EQ(foretold, ended == 1);
    }
    if (cycle.has_ended()) found.push_back(place);
  }
  return found;
}

using Places = std::vector<std::size_t>;

TEST(UpdateCycle, OfOneOptimizerEachStepIsAnIteration) {
  UpdateCycle cycle(1);
  EXPECT_FALSE(cycle.ends_with(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cycle.ends_with(0));
    EXPECT_EQ(cycle.step(0, 0), 1);
    EXPECT_TRUE(cycle.has_ended());
  }
}

TEST(UpdateCycle, BeginsAnywhereInAnIteration) {
  EXPECT_EQ(ends_of("D" + repeated("DDG", 10)), (Places{24, 27, 30}));
}

TEST(UpdateCycle, AnIterationBeginsWithTheStepThatABatchIsTakenFor) {
  EXPECT_EQ(ends_of("GDG" + repeated("DGG", 9), "D"), (Places{23, 26, 29}));
}

TEST(UpdateCycle, AStepThatIsLeftOutOrMadeTwiceMovesNoEnd) {
  EXPECT_EQ(ends_of(repeated("DG", 6) + "D" + repeated("DG", 2)), (Places{11, 14, 16}));
  EXPECT_EQ(ends_of(repeated("DG", 6) + "DGG" + repeated("DG", 2)), (Places{11, 13, 14, 16, 18}));
}

TEST(UpdateCycle, AnOptimizerThatJoinsLaterLetsTheOrderBeFoundAnew) {
  const std::string steps = repeated("D", 30) + repeated("DDG", 12);
  const Places found = ends_of(steps);
  ASSERT_GT(found.size(), 20U);
  for (std::size_t i = 0; i < 19; ++i) EXPECT_EQ(found[i], 11 + i);
  for (const std::size_t place : found) {
    EXPECT_TRUE(place <= 40 || steps[place] == 'G') << place;
  }
  EXPECT_EQ(steps[found.back()], 'G');
}

TEST(UpdateCycle, LongOrdersAreFound) {
  const Places found = ends_of(repeated(repeated("D", 100) + "G", 5));
  ASSERT_GE(found.size(), 2U);
  EXPECT_EQ(found[found.size() - 2], 403U);
  EXPECT_EQ(found.back(), 504U);
}

TEST(UpdateCycle, TellsWhereThereIsNoOrder) {
  UpdateCycle cycle(3);
  for (unsigned number = 0; number < 600; ++number) {
    EXPECT_EQ(cycle.problem(), "");
    // Differences of the Thue-Morse sequence: no part of it is ever repeated at once.
    const unsigned next = std::popcount(number + 1) % 2, last = std::popcount(number) % 2;
    cycle.step(1 + next - last, 0);
    EXPECT_FALSE(cycle.has_ended());
  }
  EXPECT_EQ(cycle.problem(), "the optimizers step in no order that repeats");
}

}  // namespace
}  // namespace headrace
