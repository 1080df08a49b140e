// What torch.optim.lr_scheduler.ReduceLROnPlateau remembers, as a value.
#pragma once

#include <headrace/options/lr_scheduler.h>

#include <cstdint>
#include <optional>

namespace headrace {

// Of schedules this one alone has a state: the others follow from the number of the step. Names as in its state_dict(),
// where `reductions` is the learning rate itself.
struct PlateauState {
  std::optional<double> best;  // nullopt: there was no metric that is a number.
  std::int64_t num_bad_epochs = 0;
  std::int64_t cooldown_counter = 0;
  std::int64_t reductions = 0;  // Times that lr was to be multiplied with `factor`.

  bool operator==(const PlateauState&) const = default;
};

// The state after the epoch that has this metric: ReduceLROnPlateau.step(metric). A metric that is no number is never
// better.
PlateauState after_metric(const PlateauState& state, const LrSchedulerOptions& lr_scheduler, double metric);

}  // namespace headrace
