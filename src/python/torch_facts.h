// What is known of the torch that is loaded in this process, without its libraries.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace headrace::python {

// torch.Tensor; None where torch is not loaded. Under the GIL.
pybind11::object tensor_type();

// These take the GIL themselves.

// torch's; where it is not loaded, the cores that this process may use.
std::int64_t compute_threads();
// "2.11.0", whatever it was built for; "none" where torch is not loaded.
std::string torch_version();

}  // namespace headrace::python
