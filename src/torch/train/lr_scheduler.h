// Learning rate by optimizer step.
#pragma once

#include <headrace/options/lr_scheduler.h>

#include <cstdint>

namespace headrace {

// The whole run: `steps` optimizer steps in `epochs` epochs of equal length.
struct RunLength {
  std::int64_t steps = 1;
  std::int64_t epochs = 1;
};

// Learning rate of optimizer step `step` (from 0). Warm-up comes first: lr * (step + 1) / warmup_steps. Then
// - cosine (Loshchilov and Hutter, SGDR 2017, one period): from lr down to eta_min at the run's last
//   step, over the steps after the warm-up; where only one step is left after the warm-up, it keeps lr;
// - step: lr * gamma^(epoch / step_size, rounded down), as torch.optim.lr_scheduler.StepLR stepped once an epoch;
// - multi_step: lr * gamma^(milestones that are <= epoch), as MultiStepLR. `epoch` counts from 0, warm-up included.
// Steps beyond the run: cosine stays at its end, the others go on.
double scheduled_lr(const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step, const RunLength& run);

}  // namespace headrace
