// Learning rate and momentum by optimizer step: for a Trainer, which asks for them itself, and for any other loop.
#pragma once

#include <headrace/options/lr_scheduler.h>
#include <headrace/options/train.h>
#include <headrace/plateau.h>

#include <cstdint>
#include <optional>

namespace headrace {

// The whole run: `steps` optimizer steps in `epochs` epochs of equal length. Epochs are counted by the updates that
// were made: one that is left out moves the epochs of a schedule after it by one update.
struct RunLength {
  std::int64_t steps = 1;
  std::int64_t epochs = 1;
};

// Whether a step of the schedule is an optimizer step: LrSchedulerOptions::interval, with what `auto` is.
bool moves_by_steps(const LrSchedulerOptions& lr_scheduler);

// Learning rate of optimizer step `step` (from 0). Warm-up comes first: lr * (step + 1) / warmup_steps, as LinearLR
// with start_factor 1 / warmup_steps and total_iters warmup_steps - 1. Then the closed form of the class of
// torch.optim.lr_scheduler, by the same operations in the same order, at t: optimizer steps after the warm-up, or
// epochs from the run's beginning, warm-up included (LrSchedulerOptions::interval). Beside torch:
// - a length of 0 is what the run has left at the schedule's beginning, in a SequentialLR until the next begins. A
//   CosineAnnealingLR then reaches eta_min at its last step and stays there; where it has one step only, it keeps lr.
// - OneCycleLR stays where it is after its last step.
// - CyclicLR and OneCycleLR begin with `lr` in the place of a max_lr of 0.
// - ReduceLROnPlateau is lr after plateau.reductions.
// - ChainedScheduler is the product of what its schedules make of lr, which torch's makes step by step.
// Numbers must lie in the ranges that options/scheduler.h tells, which a Trainer checks and this does not, and those of
// `run` be at least 1. A pure function, like the others here: any thread.
// Error{invalid_argument}: ExponentialLR without gamma or CosineAnnealingWarmRestarts without T_0, which have no
// default; a SequentialLR whose milestones are not one fewer than its schedulers, a ChainedScheduler without any, and
// either of them that holds what it cannot hold.
double scheduled_lr(const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step, const RunLength& run,
                    const PlateauState& plateau = {});

// The same with TrainOptions::swa_lr: from the beginning of epoch swa_start, counted from 0, each epoch has the rate
// that torch.optim.swa_utils.SWALR gives after so many of its steps, from the scheduled rate of the last update before.
// `plateau` must stay as it was then. Epochs are counted as a schedule's are.
double swa_lr(const TrainOptions& options, const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step,
              const RunLength& run, const PlateauState& plateau = {});

// What CyclicLR and OneCycleLR with cycle_momentum set momentum, or the first of betas, to at that step; during the
// warm-up what they begin with. Where another schedule of a SequentialLR is in force, it stays as in torch: where the
// last cycle before ended, and before the first cycle where the last of all begins. nullopt: no schedule moves it, at
// no step of the run.
std::optional<double> scheduled_momentum(const LrSchedulerOptions& lr_scheduler, std::int64_t step,
                                         const RunLength& run);

}  // namespace headrace
