// What each bind_<topic>.cpp puts into headrace._engine.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

void register_trainer(pybind11::module_& module);
void register_allocator(pybind11::module_& module);
void register_operators(pybind11::module_& module);

}  // namespace headrace::python
