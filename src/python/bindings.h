// What each bind_<topic>.cpp puts into headrace._native.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

void register_trainer(pybind11::module_& module);
void register_knobs(pybind11::module_& module);
void register_strategies(pybind11::module_& module);
void register_tune(pybind11::module_& module);
void register_live(pybind11::module_& module);
void register_watch(pybind11::module_& module);

}  // namespace headrace::python
