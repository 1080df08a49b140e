#include <headrace/profile_schedule.h>

#include <cstdint>
#include <limits>

#include "core/base/fail.h"

namespace headrace {
namespace {

void check_number(const char* name, std::int64_t number, std::int64_t least) {
  if (number >= least) return;
  fail(ErrorCode::invalid_argument, "profile: schedule: {}: wanted at least {}, found {}", name, least, number);
}

// Of numbers from 0; the largest one in place of a sum beyond it, which no loop reaches.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

}  // namespace

const char* to_string(ProfileAction action) {
  switch (action) {
    case ProfileAction::none:
      return "NONE";
    case ProfileAction::warmup:
      return "WARMUP";
    case ProfileAction::record:
      return "RECORD";
    case ProfileAction::record_and_save:
      return "RECORD_AND_SAVE";
  }
  return "";
}

void check(const ProfileSchedule& schedule) {
  check_number("wait", schedule.wait, 0);
  check_number("warmup", schedule.warmup, 0);
  check_number("active", schedule.active, 1);
  check_number("repeat", schedule.repeat, 0);
  check_number("skip_first", schedule.skip_first, 0);
}

ProfileAction profile_action(const ProfileSchedule& schedule, std::int64_t step) noexcept {
  if (step < schedule.skip_first) return ProfileAction::none;
  const std::int64_t idle = sum(schedule.wait, schedule.warmup), length = sum(idle, schedule.active);
  std::int64_t at = step - schedule.skip_first;
  if (schedule.repeat > 0 && at / length >= schedule.repeat) return ProfileAction::none;
  at %= length;
  if (at < schedule.wait) return ProfileAction::none;
  if (at < idle) return ProfileAction::warmup;
  return at == length - 1 ? ProfileAction::record_and_save : ProfileAction::record;
}

}  // namespace headrace
