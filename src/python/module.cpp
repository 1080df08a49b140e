// headrace._native: what each bind_<topic>.cpp registers.
#include <pybind11/pybind11.h>

#include "python/bindings.h"
#include "python/errors.h"

PYBIND11_MODULE(_native, module) {
  headrace::python::register_errors(module);
  headrace::python::register_loader(module);
  headrace::python::register_trainer(module);
  headrace::python::register_insight(module);
  headrace::python::register_knobs(module);
  headrace::python::register_strategies(module);
  headrace::python::register_tune(module);
  headrace::python::register_live(module);
  headrace::python::register_pack(module);
  headrace::python::register_watch(module);
  headrace::python::register_transforms(module);
}
