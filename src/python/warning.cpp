#include "python/warning.h"

#include <pybind11/pybind11.h>

namespace headrace::python {

void warn(const std::string& text) {
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw pybind11::error_already_set();
}

}  // namespace headrace::python
