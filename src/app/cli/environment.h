// What a job ran in, by allow-lists: others of the environment's variables may hold secrets.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hardware/machine.h"

namespace headrace {

// Those that are set, with their values, sorted by name: OMP_*, GOMP_*, KMP_*, MKL_*, OPENBLAS_*, MALLOC_*,
// GLIBC_TUNABLES, LD_PRELOAD, CUDA_VISIBLE_DEVICES, HEADRACE_TORCH, and those that debug_effect() knows.
std::vector<std::pair<std::string, std::string>> job_variables();

// What a variable that is for finding faults does to each step, as "each kernel is waited for"; empty: it is none of
// them, or its value switches it off.
std::string_view debug_effect(std::string_view name, std::string_view value);

// What a report shows: versions, processor, cores, memory, system, with names for a person.
std::vector<std::pair<std::string, std::string>> report_environment(const Machine& machine,
                                                                    const std::string& libtorch_version);

}  // namespace headrace
