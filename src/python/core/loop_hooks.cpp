#include "python/core/loop_hooks.h"

#include <cstddef>
#include <exception>

#include "python/core/errors.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

template <class Object>
Object& object_of(PyObject* capsule) {
  return *static_cast<Object*>(PyCapsule_GetPointer(capsule, nullptr));
}

// Exceptions must not leave a function that C calls.
template <class Work>
PyObject* guarded(Py_ssize_t given, Py_ssize_t wanted, Work work) noexcept {
  if (given != wanted) {
    return PyErr_Format(PyExc_TypeError, "headrace: wanted %zd arguments, found %zd", wanted, given);
  }
  try {
    return work();  // Null where it has raised.
  } catch (...) {
    set_error_of(std::current_exception());
  }
  return nullptr;
}

PyObject* see_call(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return guarded(count, 3, [=] {
    // An attribute `training` may be anything.
    const int has_gradients = PyObject_IsTrue(given[0]);
    if (has_gradients < 0) return static_cast<PyObject*>(nullptr);
    const int trains = PyObject_IsTrue(given[1]);
    if (trains < 0) return static_cast<PyObject*>(nullptr);
    const double numbers = PyFloat_AsDouble(given[2]);
    if (PyErr_Occurred() != nullptr) return static_cast<PyObject*>(nullptr);
    object_of<LoopUnitsObject>(self).units().see_call(has_gradients == 1, trains == 1, numbers);
    return nb::none().release().ptr();
  });
}

// False: it has raised. KeyError is none: the other hook is gone, as by a stop() between this one's begin and here.
bool put_other_last(const LoopUnitsObject& units, PyObject* put) {
  if (!units.is_at_work_here()) return true;
  PyObject* const done = PyObject_CallNoArgs(put);
  Py_XDECREF(done);
  if (done != nullptr) return true;
  if (PyErr_ExceptionMatches(PyExc_KeyError) == 0) return false;
  PyErr_Clear();
  return true;
}

PyObject* begin_step(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return guarded(count, 2, [=] {
    const std::size_t optimizer = PyLong_AsSize_t(given[0]);
    if (PyErr_Occurred() != nullptr) return static_cast<PyObject*>(nullptr);
    auto& units = object_of<LoopUnitsObject>(self);
    const bool is_asked_for = units.begin_step(optimizer);  // First: from here on the loop's thread is known.
    if (!put_other_last(units, given[1])) return static_cast<PyObject*>(nullptr);
    return PyBool_FromLong(is_asked_for ? 1 : 0);
  });
}

PyObject* end_step(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return guarded(count, 3, [=] {
    const std::size_t optimizer = PyLong_AsSize_t(given[0]);
    const double now_s = PyFloat_AsDouble(given[1]);
    if (PyErr_Occurred() != nullptr) return static_cast<PyObject*>(nullptr);
    auto& units = object_of<LoopUnitsObject>(self);
    if (!put_other_last(units, given[2])) return static_cast<PyObject*>(nullptr);  // Before hooks may be removed.
    return PyLong_FromLong(units.end_step(optimizer, now_s));
  });
}

PyObject* note_batch(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return guarded(count, 1, [=] {
    const double wait_s = PyFloat_AsDouble(given[0]);
    if (PyErr_Occurred() != nullptr) return static_cast<PyObject*>(nullptr);
    object_of<EpochCounts>(self).note_batch(PyThread_get_thread_ident(), wait_s);
    return nb::none().release().ptr();
  });
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t) noexcept;

PyMethodDef method(const char* name, Function function) {
  // CPython's own way to hand over a function with another signature than PyCFunction.
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

nb::object function(PyMethodDef& definition, const nb::capsule& self) {
  return nb::steal(PyCFunction_New(&definition, self.ptr()));
}

}  // namespace

nb::tuple hooks_of(LoopUnitsObject& units) {
  static PyMethodDef see = method("see_call", see_call), begin = method("begin_step", begin_step),
                     end = method("end_step", end_step);
  const nb::capsule self(&units);
  return nb::make_tuple(function(see, self), function(begin, self), function(end, self));
}

nb::tuple hooks_of(EpochCounts& epochs) {
  static PyMethodDef note = method("note_batch", note_batch);
  return nb::make_tuple(function(note, nb::capsule(&epochs)));
}

}  // namespace headrace::python
