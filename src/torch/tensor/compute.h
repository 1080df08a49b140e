// Applies compute.intra_op_threads to ATen and OpenMP.
#pragma once

#include <headrace/error.h>

#include <cstdint>

namespace headrace {

// Intra-op threads of the calling thread's operators, live. Inter-op threads are set to 1 at the first call of the
// process.
Applied apply_compute_threads(std::int64_t threads);
std::int64_t compute_threads();
// Ends the threads that compute for the calling thread. Between two operators they spin, where the wait policy is
// active for minutes, and take cores from other processes; the next operator starts them anew. Does nothing where the
// OpenMP in this process is too old to be asked.
void end_idle_compute_threads();

}  // namespace headrace
