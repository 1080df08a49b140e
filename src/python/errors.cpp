#include "python/errors.h"

#include <headrace/error.h>
#include <torch/csrc/Exceptions.h>

#include <exception>

namespace headrace::python {
namespace {

namespace py = pybind11;

void raise(const Error& error) {
  PyErr_Clear();  // What a hook of a backward raised and this error tells of: torch has set it.
  const py::object class_of_code = py::module_::import("headrace.errors").attr("class_of_code");
  const py::object type = class_of_code[to_string(error.code())];
  py::set_error(type, error.what());
}

// pybind11 asks with a copy of what was thrown, and goes on to its own translators with what this throws.
void translate_exception(std::exception_ptr exception) {  // NOLINT(performance-unnecessary-value-param): its signature.
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    raise(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(exception);
  } catch (const python_error&) {  // What a Python function of a backward raised.
    torch::translate_exception_to_python(exception);
  }
}

}  // namespace

void register_errors(py::module_& module) {
  py::register_local_exception_translator(&translate_exception);
  module.attr("__doc__") =
      "The native half of headrace. Its contents are documented under the names that headrace gives.";
}

}  // namespace headrace::python
