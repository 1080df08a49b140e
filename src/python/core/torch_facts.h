// What torch tells, where it is in this process.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "core/hardware/machine_peaks.h"

namespace headrace::python {

// torch.Tensor; None where torch is not loaded. Under the GIL.
nanobind::object tensor_type();

// These any thread may ask: the GIL is taken for them.

// As many as compute for an operator of the calling thread: torch's own number, or the cores that this process may use
// where torch is not loaded.
std::int64_t compute_threads();
// "2.11.0", whatever it was built for; "none" where torch is not loaded.
std::string torch_version();

// Of this machine with torch's threads, measured the first time and kept. multiply(n) multiplies two float32 matrices
// of n x n; what it raises passes as RaisedInPython. Under the GIL.
MachinePeaks peaks_by(const nanobind::object& multiply);

}  // namespace headrace::python
