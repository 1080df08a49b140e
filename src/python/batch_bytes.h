// The memory of the batch that a Trainer has at hand.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace headrace::python {

// Of the storages on the CPU that a batch's tensors lie in, each once; 0 for a headrace.Batch, whose Loader counts it.
// Called at every step, and therefore natively; other people's loops have headrace._loop_memory.batch_bytes. Under the
// GIL.
std::int64_t batch_bytes(pybind11::handle batch);

}  // namespace headrace::python
