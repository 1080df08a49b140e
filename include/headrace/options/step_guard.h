// What a Trainer does about numbers that are not finite.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace headrace {

enum class GuardPolicy { raise, skip, replace, lower_lr, rollback };
constexpr auto choices(GuardPolicy) {
  return std::array{Choice<GuardPolicy>{GuardPolicy::raise, "raise"}, Choice<GuardPolicy>{GuardPolicy::skip, "skip"},
                    Choice<GuardPolicy>{GuardPolicy::replace, "replace"},
                    Choice<GuardPolicy>{GuardPolicy::lower_lr, "lower_lr"},
                    Choice<GuardPolicy>{GuardPolicy::rollback, "rollback"}};
}

struct StepGuardOptions {
  GuardPolicy policy = GuardPolicy::raise;
  bool gradients = true;           // One pass over them, where neither clipping nor a loss scale makes one.
  bool weights = false;            // One pass over parameters and buffers after each update.
  bool detect_anomaly = false;     // Examines each operator's results: several times slower. For finding a fault.
  std::int64_t max_in_a_row = 10;  // Faults without a good update between them.
  std::int64_t max_faults = 1000;  // Of a run.
  double lr_factor = 0.5;          // lower_lr: what a fault multiplies the rate by, for the rest of the run.
  std::int64_t keep_every = 100;   // rollback: updates between two kept states. Memory for one copy of all state.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, StepGuardOptions>
void describe(Visitor& visit, Options& o) {
  visit("policy", o.policy,
        "What follows a loss, gradient or weight that is NaN or infinite: raise ends training with an error that names "
        "it; skip leaves the update out; replace makes such gradients and weights 0; lower_lr is skip with a smaller "
        "learning rate from then on; rollback returns to the last good state.");
  visit("gradients", o.gradients, "Examine the gradients before each update, also without clipping.");
  visit("weights", o.weights, "Examine parameters and buffers after each update.");
  visit("detect_anomaly", o.detect_anomaly,
        "Examine the result of every operator of forward and backward, and name the first one whose result is NaN. "
        "Makes a step several times slower.");
  visit("max_in_a_row", o.max_in_a_row, Range<std::int64_t>{1, 1000000},
        "Faults without a good update between them that policies other than raise bear; one more is an error.");
  visit("max_faults", o.max_faults, Range<std::int64_t>{1, 1000000000},
        "Faults of the whole run that policies other than raise bear; one more is an error.");
  visit("lr_factor", o.lr_factor, Range<double>{1e-6, 1.0},
        "What the learning rate is multiplied by at each fault (lower_lr).");
  visit("keep_every", o.keep_every, Range<std::int64_t>{1, 1000000},
        "Updates between two states that are kept to return to (rollback).");
}

}  // namespace headrace
