// What each bind_<topic>.cpp puts into headrace._native.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

void register_trainer(pybind11::module_& module);
void register_process(pybind11::module_& module);

}  // namespace headrace::python
