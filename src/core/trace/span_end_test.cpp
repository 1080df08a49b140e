#include "core/trace/span_end.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(SpanEnd, IsBehindTheBeginningAndElseAsItWasTaken) {
  EXPECT_EQ(span_end({5}, {9}).ticks, 9U);
  EXPECT_EQ(span_end({5}, {6}).ticks, 6U);
  EXPECT_EQ(span_end({5}, {5}).ticks, 6U);
  EXPECT_EQ(span_end({5}, {3}).ticks, 6U);
}

}  // namespace
}  // namespace headrace
