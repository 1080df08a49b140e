// The learning rate of a run: a schedule, alone or several one after the other or together, and the warm-up before it.
#pragma once

#include <headrace/options.h>
#include <headrace/options/scheduler.h>
#include <headrace/options/scheduler_names.h>

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headrace {

struct LrSchedulerOptions : SchedulerOptions {
  SchedulerInterval interval = SchedulerInterval::automatic;
  std::int64_t warmup_steps = 0;               // Optimizer steps from lr/warmup_steps up to lr, linearly.
  std::vector<SchedulerOptions> schedulers{};  // SequentialLR: one more than milestones; ChainedScheduler: any number.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, LrSchedulerOptions>
void describe(Visitor& visit, Options& o) {
  describe_scheduler(visit, o);
  visit(
      "interval", o.interval,
      "What a step of the schedule is: an optimizer step after the warm-up (step), or as many of them as an epoch has, "
      "from the run's beginning (epoch). auto is step for CyclicLR, OneCycleLR and a CosineAnnealingLR over the whole "
      "run, and epoch for the others; a SequentialLR that holds one of the first two wants one that is written.");
  visit("warmup_steps", o.warmup_steps, Range<std::int64_t>{0, 10'000'000},
        "Optimizer steps of linear warm-up, from lr / warmup_steps to lr: LinearLR before the rest.");
  visit("schedulers", o.schedulers,
        "The schedules of SequentialLR, in order, each with its own parameters; its steps count from its milestone. Or "
        "those of ChainedScheduler, all in force at once: what each makes of lr, the next one multiplies.");
}

}  // namespace headrace
