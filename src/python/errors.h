// What C++ throws as Python's exceptions.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

// From here on an Error that leaves a function of `module` is the class of headrace.errors for its code; what LibTorch
// throws is what torch itself makes of it; a Python exception that came through C++ keeps its class, arguments and
// traceback.
void register_errors(pybind11::module_& module);

}  // namespace headrace::python
