// Learning rate by optimizer step.
#pragma once

#include <cstdint>

#include "train/train_options.h"

namespace headrace {

// Rate of optimizer step `step` (from 0) of `total`. Warm-up: rate * (step + 1) / warmup_steps. Cosine (Loshchilov and
// Hutter, SGDR 2017, one period): from rate down to rate * final_fraction at step total - 1, over the steps after the
// warm-up; where only one step is left after the warm-up, it keeps the rate. Steps from `total` on stay at the end.
double scheduled_rate(const ScheduleOptions& schedule, double rate, std::int64_t step, std::int64_t total);

}  // namespace headrace
