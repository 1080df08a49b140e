// What torch tells, where it is in this process. Any thread may ask: the GIL is taken for it.
#pragma once

#include <cstdint>

namespace headrace::python {

// As many as compute for an operator of the calling thread: torch's own number, or the cores that this process may use
// where torch is not loaded.
std::int64_t compute_threads();

}  // namespace headrace::python
