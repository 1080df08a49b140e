// Differential runs of a job: what a step takes when one thing costs nothing.
#pragma once

#include <headrace/resource_verdict.h>
#include <headrace/time_split.h>

#include "insight/measure/measure.h"

namespace headrace {

// Seven pairs of blocks, next to each other and taking turns in going first: the job as it is, and with one cached
// batch in the place of its data; beside them, where workers load, blocks in which none does, and blocks in which a
// sleep of the same length takes the place of compute. Each kind of block is shorter, or left out, where all of them
// would take longer than `seconds_max`. A figure whose pairs differ by more than this machine's noise allows is
// nullopt. `split`: of the job as it is. Leaves the job's settings as they were. Throws what run() throws.
StepExperiments run_experiments(MeasurableJob& job, const TimeSplit& split, double seconds_max);

}  // namespace headrace
