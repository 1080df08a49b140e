// Applies compute.intra_op_threads to ATen and OpenMP.
#pragma once

#include <headrace/error.h>

#include <cstdint>

namespace headrace {

// Intra-op threads of the calling thread's operators, live. Inter-op threads are set to 1 at the first call of the
// process.
Applied apply_compute_threads(std::int64_t threads);
std::int64_t compute_threads();

}  // namespace headrace
