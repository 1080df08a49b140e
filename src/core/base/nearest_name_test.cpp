#include "core/base/nearest_name.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(NearestName, IsATypingErrorAway) {
  EXPECT_EQ(nearest_name({"image", "boxes", "labels"}, "boxs"), "boxes");
  EXPECT_EQ(nearest_name({"image", "boxes", "labels"}, "lables"), "labels");
  EXPECT_EQ(nearest_name({"image", "boxes", "labels"}, "captions"), "");
  EXPECT_EQ(nearest_name({}, "boxes"), "");
}

TEST(NearestName, TakesCapitalsAndSmallLettersForAlike) {
  EXPECT_EQ(nearest_name({"none", "StepLR", "OneCycleLR"}, "onecyclelr"), "OneCycleLR");
  EXPECT_EQ(nearest_name({"none", "StepLR", "OneCycleLR"}, "STEPLR"), "StepLR");
  EXPECT_EQ(nearest_name({"none", "StepLR", "OneCycleLR"}, "Steplrs"), "StepLR");
}

TEST(NearestName, CountsASwapOfNeighboursAsOneEdit) {
  EXPECT_EQ(edit_distance("lables", "labels"), 1U);
  EXPECT_EQ(edit_distance("boxs", "boxes"), 1U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
}

}  // namespace
}  // namespace headrace
