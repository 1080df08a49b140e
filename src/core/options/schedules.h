// Learning-rate schedules that contradict themselves: what their keys say together, which no range can.
#pragma once

#include <headrace/options/lr_scheduler.h>

#include <string>

namespace headrace {

// A parameter of another class than the one that is named, or without effect beside another; one that is missing and
// has no default, milestones that do not rise, a cycle whose lowest value is above its highest, a sequence that does
// not fit together: as a message that begins with a key; empty when all is well. `prefix` stands before the keys:
// "lr_scheduler.".
std::string schedule_contradiction(const LrSchedulerOptions& options, const std::string& prefix);

// Whether it makes a multiple of whatever rate it is given, the same at each step: what a ChainedScheduler can hold.
// ConstantLR, LinearLR, StepLR, MultiStepLR, ExponentialLR, PolynomialLR, and a CosineAnnealingLR over the whole run
// down to 0: torch's makes a rate that rises again out of the optimizer's, whatever the others have left of it.
bool multiplies_rate(const SchedulerOptions& scheduler);

// Error{invalid_argument} that names the key of a number outside its range, or tells what schedule_contradiction()
// finds. For options that were not read as a recipe is. Keys are those of a recipe: "lr_scheduler.gamma".
void check_lr_scheduler(const LrSchedulerOptions& options);

}  // namespace headrace
