#include "train/schedule.h"

#include <algorithm>
#include <cmath>

namespace headrace {

double scheduled_rate(const ScheduleOptions& schedule, double rate, std::int64_t step, std::int64_t total) {
  if (step < schedule.warmup_steps) {
    return rate * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.name == ScheduleName::constant) return rate;
  const std::int64_t last = total - 1 - schedule.warmup_steps;
  if (last <= 0) return rate;
  constexpr double kPi = 3.14159265358979323846;
  const double turned = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(last));
  return rate * (schedule.final_fraction + (1 - schedule.final_fraction) * (1 + std::cos(kPi * turned)) / 2);
}

}  // namespace headrace
