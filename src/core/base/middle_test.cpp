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

}  // namespace
}  // namespace headrace
