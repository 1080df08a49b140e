#include "insight/tune/live_payback.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(LivePayback, AGainPaysWithWhatItTakesOffTheRestOfTheRun) {
  EXPECT_DOUBLE_EQ(paid_back_after_s(40, 1), 80);  // Half of each second.
  EXPECT_DOUBLE_EQ(paid_back_after_s(10, 0.25), 50);
  EXPECT_DOUBLE_EQ(paid_back_after_s(0, 0.25), 0);
}

TEST(LivePayback, TheSumIsPrinted) {
  EXPECT_EQ(payback_text(43, 0.19, 1900), "43 s to prepare; at +19 % paid back after 269 s; 1900 s remain");
  EXPECT_EQ(payback_text(2.5, -0.1, 60), "2.5 s to prepare; 60 s remain");
  EXPECT_EQ(payback_text(40, kGainHoped, std::nullopt),
            "40 s to prepare; at +30 % paid back after 173 s; how long the run goes on is not known");
  EXPECT_EQ(payback_text(43, 0.19, 1900, "as 3 compilations here took"),
            "43 s to prepare, as 3 compilations here took; at +19 % paid back after 269 s; 1900 s remain");
}

}  // namespace
}  // namespace headrace
