#include "core/base/middle.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(MiddleOf, IsTheValueInTheMiddleOrTheUpperOfTwo) {
  EXPECT_EQ(middle_of({7}), 7);
  EXPECT_EQ(middle_of({9, 1, 5}), 5);
  EXPECT_EQ(middle_of({4, 1, 3, 2}), 3);
  EXPECT_DEATH(middle_of({}), "no values");
}

TEST(PercentileOf, InterpolatesAsNumPyDoes) {
  EXPECT_EQ(percentile_of({7}, 0.99), 7);
  EXPECT_EQ(percentile_of({1, 2, 3, 4}, 0.5), 2.5);  // numpy.percentile([1, 2, 3, 4], 50)
  EXPECT_EQ(percentile_of({1, 2, 3, 4}, 1), 4);
  EXPECT_DEATH(percentile_of({}, 0.5), "0 values");
}

}  // namespace
}  // namespace headrace
