// What C++ throws as Python's exceptions.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

// From here on an Error that leaves a function of headrace._core is the class of headrace.errors for its code; a Python
// exception that came through C++ keeps its class, arguments and traceback.
void register_errors(nanobind::module_& module);

}  // namespace headrace::python
