#include "python/core/errors.h"

#include <headrace/error.h>

#include <exception>

#include "python/core/python_source.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

void raise(const Error& error) {
  const nb::object type = imported("headrace.errors", "class_of_code")[to_string(error.code())];
  PyErr_SetString(type.ptr(), error.what());
}

// What it does not catch nanobind asks its next translator for.
void translate_exception(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const SampleException& error) {
    error.restore();
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace

void register_errors(nb::module_& module) {
  nb::register_exception_translator(&translate_exception);
  module.doc() =
      "The native half of headrace that needs no torch. Its contents are documented under the names that headrace "
      "gives.";
}

}  // namespace headrace::python
