#include "train/schedule.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

double cosine_rate(const ScheduleOptions& schedule, double rate, std::int64_t step, std::int64_t steps) {
  const std::int64_t last = steps - 1 - schedule.warmup_steps;
  if (last <= 0) return rate;
  constexpr double kPi = 3.14159265358979323846;
  const double turned = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(last));
  return rate * (schedule.final_fraction + (1 - schedule.final_fraction) * (1 + std::cos(kPi * turned)) / 2);
}

}  // namespace

double scheduled_rate(const ScheduleOptions& schedule, double rate, std::int64_t step, const RunLength& run) {
  if (step < schedule.warmup_steps) {
    return rate * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const std::int64_t epoch = step / std::max<std::int64_t>(1, run.steps / run.epochs);
  const auto fallen = [&](std::int64_t times) { return rate * std::pow(schedule.gamma, static_cast<double>(times)); };
  switch (schedule.name) {
    case ScheduleName::constant:
      return rate;
    case ScheduleName::cosine:
      return cosine_rate(schedule, rate, step, run.steps);
    case ScheduleName::step:
      return fallen(epoch / schedule.step_epochs);
    case ScheduleName::multi_step: {
      const auto done = [epoch](double milestone) { return milestone <= static_cast<double>(epoch); };
      return fallen(std::count_if(schedule.milestones.begin(), schedule.milestones.end(), done));
    }
  }
  return rate;
}

}  // namespace headrace
