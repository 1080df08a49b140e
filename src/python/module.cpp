// headrace._engine: what each bind_<topic>.cpp registers. What needs no LibTorch is in headrace._core (python/core).
#include <pybind11/pybind11.h>

#include "python/bindings.h"
#include "python/errors.h"

PYBIND11_MODULE(_engine, module) {
  headrace::python::register_errors(module);
  headrace::python::register_trainer(module);
  headrace::python::register_allocator(module);
  headrace::python::register_operators(module);
}
