#include <headrace/plateau.h>

#include <limits>

namespace headrace {
namespace {

bool is_better(const LrSchedulerOptions& o, double metric, const std::optional<double>& known) {
  constexpr double kWorst = std::numeric_limits<double>::infinity();
  const bool is_relative = o.threshold_mode == ThresholdMode::rel;
  if (o.mode == SchedulerMode::max) {
    const double best = known.value_or(-kWorst);
    return metric > (is_relative ? best * (o.threshold + 1.0) : best + o.threshold);
  }
  const double best = known.value_or(kWorst);
  return metric < (is_relative ? best * (1.0 - o.threshold) : best - o.threshold);
}

}  // namespace

PlateauState after_metric(const PlateauState& state, const LrSchedulerOptions& lr_scheduler, double metric) {
  PlateauState next = state;
  if (is_better(lr_scheduler, metric, state.best)) {
    next.best = metric;
    next.num_bad_epochs = 0;
  } else {
    ++next.num_bad_epochs;
  }
  if (next.cooldown_counter > 0) {
    --next.cooldown_counter;
    next.num_bad_epochs = 0;
  }
  if (next.num_bad_epochs > lr_scheduler.patience) {
    ++next.reductions;
    next.cooldown_counter = lr_scheduler.cooldown;
    next.num_bad_epochs = 0;
  }
  return next;
}

}  // namespace headrace
