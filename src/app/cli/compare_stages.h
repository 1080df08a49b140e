// Which part of a step has changed, of scripts that do not tell it themselves.
#pragma once

#include "app/cli/compare_arms.h"
#include "insight/compare/compare_verdict.h"

namespace headrace {

// Whether find_stages() has something to explain: both arms are scripts, a time or a rate has changed, and their runs
// told no stages.
bool needs_stages(const ComparedArm& old_arm, const ComparedArm& new_arm, const CompareVerdict& verdict);

// Runs both scripts once more under `PYTHON -m headrace profile`, which finds the parts of a step without an edit of
// the script. It costs a script some of its time, so this pair comes after the verdict and counts for nothing in it:
// the verdict gets the stages, and a remark that they are of one pair. Where they cannot be measured (no headrace in
// that Python, no training step) the remark says why. False: a signal asked us to stop.
bool find_stages(const ComparedArm& old_arm, const ComparedArm& new_arm, double limit_s, CompareVerdict& verdict);

}  // namespace headrace
