// headrace._core: what needs no LibTorch, for any Python from 3.11 on. What each bind_<topic>.cpp registers.
#include <nanobind/nanobind.h>

#include "python/core/bindings.h"
#include "python/core/errors.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // Objects that Python itself does not free at its end are no finding of ours.
  headrace::python::register_errors(module);
  headrace::python::register_loader(module);
  headrace::python::register_pack(module);
  headrace::python::register_transforms(module);
  headrace::python::register_insight(module);
  headrace::python::register_watch(module);
  headrace::python::register_knobs(module);
  headrace::python::register_strategies(module);
  headrace::python::register_tune(module);
  headrace::python::register_live(module);
}
