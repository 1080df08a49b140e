// headrace._native: one register_ function for each topic, bound in bind_<topic>.cpp.
#include <pybind11/pybind11.h>

#include "python/errors.h"

PYBIND11_MODULE(_native, module) {
  headrace::python::register_errors(module);
}
