// Learning-rate schedules that contradict themselves: what their keys say together, which no range can.
#pragma once

#include <headrace/options/lr_scheduler.h>

#include <string>

namespace headrace {

// A parameter of another class than the one that is named, one that is missing and has no default, milestones that do
// not rise, a sequence that does not fit together: as a message that begins with a key; empty when all is well.
// `prefix` stands before the keys: "lr_scheduler.".
std::string schedule_contradiction(const LrSchedulerOptions& options, const std::string& prefix);

}  // namespace headrace
