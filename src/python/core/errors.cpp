#include "python/core/errors.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

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
  } catch (const RaisedInPython& raised) {
    raised.restore();
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

void set_error_of(const std::exception_ptr& thrown) noexcept {
  try {
    translate_exception(thrown, nullptr);  // Which rethrows what it does not know.
  } catch (nb::python_error& raised) {
    raised.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "headrace: an exception of an unknown kind");
  }
}

std::string sentence_of(const nb::python_error& raised) {
  try {
    const std::string message = text_of(raised.value());
    return message.empty() ? class_name(raised.value()) : fmt::format("{}: {}", class_name(raised.value()), message);
  } catch (const nb::python_error&) {  // Of its __str__.
    return class_name(raised.value());
  }
}

RaisedInPython::RaisedInPython(nb::python_error raised) : raised_(std::move(raised)), sentence_(sentence_of(raised_)) {}

void RaisedInPython::restore() const {
  nb::python_error(raised_).restore();  // A copy: it would leave nothing to the next who asks.
}

}  // namespace headrace::python
