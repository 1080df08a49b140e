// Which steps of a loop a profile records. Pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

namespace headrace {

// Of every wait + warmup + active steps the first are left alone, the next observed and thrown away, and the last
// recorded, as a window; torch.profiler.schedule() has the same words. Numbers of steps, from 0; active from 1.
struct ProfileSchedule {
  std::int64_t wait = 0;
  std::int64_t warmup = 0;
  std::int64_t active = 1;
  std::int64_t repeat = 0;      // How often; 0: as long as the profile runs.
  std::int64_t skip_first = 0;  // Steps before all of this.
};

enum class ProfileAction { none, warmup, record, record_and_save };  // The last one ends a window.
// As torch.profiler.ProfilerAction has them: "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE".
const char* to_string(ProfileAction action);

// Error{invalid_argument}, which names the number: it is out of range.
void check(const ProfileSchedule& schedule);
// Of a schedule within its ranges, in the step of this number, from 0; none below that.
ProfileAction profile_action(const ProfileSchedule& schedule, std::int64_t step) noexcept;

}  // namespace headrace
