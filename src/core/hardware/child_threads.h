// How many threads the libraries of processes that this one starts compute with.
#pragma once

#include <cstdint>

#include "core/hardware/hardware_change.h"

namespace headrace {

// Sets OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS, 1 to 1024: OpenMP, MKL and OpenBLAS read them when
// they are loaded, so that they hold for child processes and never for this one, whose compute threads
// apply_compute_threads() (torch/tensor/compute.h) sets. Undo puts each variable back, or takes it away again. setenv()
// is not thread-safe: no other thread may read or write the environment meanwhile, so this is for the begin and end of
// a program. Error{invalid_argument}: another number.
HardwareChange set_child_threads(std::int64_t threads);

}  // namespace headrace
