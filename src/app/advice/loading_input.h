// What advice on loading needs, from a loader that has delivered some batches.
#pragma once

#include <headrace/loader.h>
#include <headrace/loading_advice.h>
#include <headrace/report.h>

#include <cstdint>
#include <optional>

#include "core/hardware/machine.h"

namespace headrace {

// Costs, threads and the consumer's own time as the loader has counted them since it was built, the rate that follows
// from both, and what each optional transform costs: Loader::transform_costs(), a second of the calling thread. What
// copies the consumer makes is not known here. `compute_threads`: of the consumer.
LoadingInput loading_input(const Loader& loader, const Machine& machine, std::int64_t compute_threads);

// The loader's plan for a report; nullopt before the first sample.
std::optional<Report::LoadingPlan> loading_plan(const Loader& loader);

}  // namespace headrace
