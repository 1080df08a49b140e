// What a job ran in, by allow-lists: others of the environment's variables may hold secrets.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/hardware/machine.h"

namespace headrace {

// Those that are set, with their values, sorted by name: OMP_*, GOMP_*, KMP_*, MKL_*, OPENBLAS_*, MALLOC_*,
// GLIBC_TUNABLES, LD_PRELOAD, CUDA_VISIBLE_DEVICES, HEADRACE_TORCH.
std::vector<std::pair<std::string, std::string>> job_variables();

// What a report shows: versions, processor, cores, memory, system, with names for a person.
std::vector<std::pair<std::string, std::string>> report_environment(const Machine& machine,
                                                                    const std::string& libtorch_version);

}  // namespace headrace
