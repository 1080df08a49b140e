#include <headrace/error.h>
#include <headrace/options.h>

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/exec/cores.h"

namespace headrace {
namespace {

TEST(Cores, ComputeTakesEveryUsableCoreUnlessTold) {
  const CoreSplit automatic = split_cores(4, 0, 2);
  EXPECT_EQ(automatic.compute, 4);
  EXPECT_EQ(automatic.loading, 2);
  EXPECT_EQ(split_cores(1, 0, 0).compute, 1);
  EXPECT_EQ(split_cores(1, 0, 0).loading, 0);
  EXPECT_EQ(split_cores(4, 0, AUTOTUNE).loading, 1);
}

TEST(Cores, WrittenNumbersAreLaw) {
  const CoreSplit split = split_cores(2, 8, 16);
  EXPECT_EQ(split.compute, 8);
  EXPECT_EQ(split.loading, 16);
}

std::vector<std::pair<int, int>> loading_and_compute(int usable) {
  std::vector<std::pair<int, int>> found;
  for (const CoreSplit& split : splits_to_try(usable)) found.emplace_back(split.loading, split.compute);
  return found;
}

TEST(Cores, SplitsToTryGiveEachCoreToOneSideOrAllToLoadingBesideOneThread) {
  using Splits = std::vector<std::pair<int, int>>;
  EXPECT_EQ(loading_and_compute(1), Splits{});
  EXPECT_EQ(loading_and_compute(2), (Splits{{1, 1}, {2, 1}}));
  EXPECT_EQ(loading_and_compute(3), (Splits{{1, 2}, {3, 1}}));
  EXPECT_EQ(loading_and_compute(4), (Splits{{2, 2}, {4, 1}, {3, 1}, {1, 3}}));
  EXPECT_EQ(loading_and_compute(16), (Splits{{8, 8}, {16, 1}, {12, 4}, {4, 12}}));
}

TEST(Cores, MoreThanTwoThreadsACoreAreToldWithTheNumbersAndAutomaticOnesAreNot) {
  EXPECT_EQ(oversubscription(8, 2, 2),
            "8 loader workers and 2 compute threads share 2 usable cores; wanted at most 4 together");
  EXPECT_EQ(oversubscription(2, 1, 1),
            "2 loader workers and 1 compute thread share 1 usable core; wanted at most 2 together");
  EXPECT_EQ(oversubscription(2, 2, 2), "");
  EXPECT_EQ(oversubscription(0, 4, 2), "");
  EXPECT_NE(oversubscription(0, 5, 2), "");
  for (const int usable : {1, 2, 3, 4, 16, 192}) {
    const CoreSplit automatic = split_cores(usable, 0, AUTOTUNE);
    EXPECT_EQ(oversubscription(automatic.loading, automatic.compute, usable), "");
    for (const CoreSplit& split : splits_to_try(usable)) {
      EXPECT_EQ(oversubscription(split.loading, split.compute, usable), "");
    }
  }
  EXPECT_THROW(oversubscription(-1, 2, 2), Error);
}

TEST(Cores, NumbersOutOfRangeAreErrors) {
  EXPECT_THROW(split_cores(2, -1, 0), Error);
  EXPECT_THROW(split_cores(2, 0, -2), Error);
  EXPECT_THROW(split_cores(2, 0, std::int64_t{1} << 33), Error);
}

}  // namespace
}  // namespace headrace
