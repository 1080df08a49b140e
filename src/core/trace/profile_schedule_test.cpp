#include <headrace/profile_schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <cstdint>
#include <limits>
#include <string>

namespace headrace {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// A letter a step: - none, w warmup, r record, S record and save.
std::string actions(const ProfileSchedule& schedule, std::int64_t steps) {
  std::string letters;
  for (std::int64_t step = 0; step < steps; ++step) {
    letters += "-wrS"[static_cast<int>(profile_action(schedule, step))];
  }
  return letters;
}

TEST(ProfileSchedule, WaitsWarmsUpAndRecordsAsOftenAsItSays) {
  EXPECT_EQ(actions({.wait = 1, .warmup = 1, .active = 3, .repeat = 2}, 15), "-wrrS-wrrS-----");
}

TEST(ProfileSchedule, WithoutARepeatItGoesOn) {
  EXPECT_EQ(actions({.wait = 0, .warmup = 1, .active = 1}, 8), "wSwSwSwS");
}

TEST(ProfileSchedule, TheFirstStepsAreSkippedOnce) {
  EXPECT_EQ(actions({.wait = 1, .warmup = 0, .active = 2, .repeat = 1, .skip_first = 3}, 9), "----rS---");
}

TEST(ProfileSchedule, BeforeTheFirstStepIsNothing) {
  EXPECT_EQ(profile_action({}, -1), ProfileAction::none);
  EXPECT_EQ(profile_action({}, 0), ProfileAction::record_and_save);
}

TEST(ProfileSchedule, NumbersWhoseSumIsNoNumberAreNeverReached) {
  const ProfileSchedule schedule{.wait = 1, .warmup = kMost, .active = kMost, .repeat = kMost, .skip_first = 1};
  EXPECT_EQ(actions(schedule, 4), "--ww");
  EXPECT_EQ(profile_action(schedule, kMost), ProfileAction::warmup);
}

TEST(ProfileSchedule, ANumberOutOfItsRangeIsNamed) {
  const auto told_of = [](const ProfileSchedule& schedule) -> std::string {
    try {
      check(schedule);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(told_of({}), "");
  EXPECT_THAT(told_of({.wait = -1}), testing::HasSubstr("schedule: wait: wanted at least 0, found -1"));
  EXPECT_THAT(told_of({.warmup = -2}), testing::HasSubstr("warmup: wanted at least 0, found -2"));
  EXPECT_THAT(told_of({.active = 0}), testing::HasSubstr("active: wanted at least 1, found 0"));
  EXPECT_THAT(told_of({.repeat = -1}), testing::HasSubstr("repeat: wanted at least 0, found -1"));
  EXPECT_THAT(told_of({.skip_first = -1}), testing::HasSubstr("skip_first: wanted at least 0, found -1"));
}

TEST(ProfileSchedule, ActionsHaveTorchsNames) {
  EXPECT_STREQ(to_string(ProfileAction::none), "NONE");
  EXPECT_STREQ(to_string(ProfileAction::record_and_save), "RECORD_AND_SAVE");
}

}  // namespace
}  // namespace headrace
