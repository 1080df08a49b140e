// The environment variables that change how a job runs, by an allow-list: others may hold secrets.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace headrace {

// Those that are set, with their values, sorted by name: OMP_*, GOMP_*, KMP_*, MKL_*, OPENBLAS_*, MALLOC_*,
// GLIBC_TUNABLES, LD_PRELOAD, CUDA_VISIBLE_DEVICES.
std::vector<std::pair<std::string, std::string>> job_variables();

}  // namespace headrace
