#include "torch/train/lr_scheduler.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

double cosine_lr(const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step, std::int64_t steps) {
  const std::int64_t last = steps - 1 - lr_scheduler.warmup_steps;
  if (last <= 0) return lr;
  constexpr double kPi = 3.14159265358979323846;
  const double turned =
      std::min(1.0, static_cast<double>(step - lr_scheduler.warmup_steps) / static_cast<double>(last));
  return lr_scheduler.eta_min + (lr - lr_scheduler.eta_min) * ((1 + std::cos(kPi * turned)) / 2);
}

}  // namespace

double scheduled_lr(const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step, const RunLength& run) {
  if (step < lr_scheduler.warmup_steps) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(lr_scheduler.warmup_steps);
  }
  const std::int64_t epoch = step / std::max<std::int64_t>(1, run.steps / run.epochs);
  const auto fallen = [&](std::int64_t times) { return lr * std::pow(lr_scheduler.gamma, static_cast<double>(times)); };
  switch (lr_scheduler.name) {
    case LrSchedulerName::constant:
      return lr;
    case LrSchedulerName::cosine:
      return cosine_lr(lr_scheduler, lr, step, run.steps);
    case LrSchedulerName::step:
      return fallen(epoch / lr_scheduler.step_size);
    case LrSchedulerName::multi_step: {
      const auto done = [epoch](double milestone) { return milestone <= static_cast<double>(epoch); };
      return fallen(std::count_if(lr_scheduler.milestones.begin(), lr_scheduler.milestones.end(), done));
    }
  }
  return lr;
}

}  // namespace headrace
