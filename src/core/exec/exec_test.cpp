#include <headrace/error.h>
#include <headrace/options.h>

#include <gtest/gtest.h>

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

TEST(Cores, NumbersOutOfRangeAreErrors) {
  EXPECT_THROW(split_cores(2, -1, 0), Error);
  EXPECT_THROW(split_cores(2, 0, -2), Error);
  EXPECT_THROW(split_cores(2, 0, std::int64_t{1} << 33), Error);
}

}  // namespace
}  // namespace headrace
