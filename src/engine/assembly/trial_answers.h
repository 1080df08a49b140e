// The child's side of a trial in processes of its own.
#pragma once

#include <headrace/job.h>

#include <functional>
#include <memory>

#include "core/exec/control_channel.h"

namespace headrace {

// Makes the job, takes its snapshot and answers what `parent` asks (engine/assembly/trial_protocol.h) until it closes.
// What the job throws, also while it is made, is told and ends it. `slot`: a descriptor of trial::kSlotBytes.
void answer_trial(const ControlChannel& parent, int slot, const std::function<std::unique_ptr<Job>()>& make_job);

}  // namespace headrace
