// headrace._native: what each bind_<topic>.cpp registers. Loader, traces and reports, which need no LibTorch, are in
// headrace._core (python/core).
#include <pybind11/pybind11.h>

#include "python/bindings.h"
#include "python/errors.h"

PYBIND11_MODULE(_native, module) {
  headrace::python::register_errors(module);
  headrace::python::register_trainer(module);
  headrace::python::register_knobs(module);
  headrace::python::register_strategies(module);
  headrace::python::register_tune(module);
  headrace::python::register_live(module);
  headrace::python::register_watch(module);
}
