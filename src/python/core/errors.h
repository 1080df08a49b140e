// What C++ throws as Python's exceptions, and what Python raises on its way through C++.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <string>
#include <utility>

namespace headrace::python {

// From here on an Error that leaves a function of headrace._core is the class of headrace.errors for its code; a Python
// exception that came through C++ keeps its class, arguments and traceback.
void register_errors(nanobind::module_& module);

// Raises it in Python as that does, for functions that nanobind does not call; of the standard library's exceptions
// bad_alloc as MemoryError, out_of_range as IndexError, the others as RuntimeError. Under the GIL.
void set_error_of(const std::exception_ptr& thrown) noexcept;

// "ValueError: no such pixel"; the class alone where it has no message, or its __str__ raises. Under the GIL.
std::string sentence_of(const nanobind::python_error& raised);

// What a call of Python raised, for C++ that looks at what(): there nanobind's own exception has a whole traceback.
class RaisedInPython : public std::exception {
 public:
  explicit RaisedInPython(nanobind::python_error raised);  // Under the GIL.
  const char* what() const noexcept override { return sentence_.c_str(); }
  // Makes it Python's current exception again, as often as it is asked for. Under the GIL.
  void restore() const;

 private:
  nanobind::python_error raised_;
  std::string sentence_;
};

// work(), whose python_error becomes RaisedInPython: for each call of Python that lies below C++ which knows no Python.
// Under the GIL.
template <class Work>
auto from_python(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (nanobind::python_error& raised) {
    throw RaisedInPython(std::move(raised));
  }
}

}  // namespace headrace::python
