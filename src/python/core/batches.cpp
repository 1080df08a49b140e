#include "python/core/batches.h"

#include "python/core/torch_facts.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

bool is_sequence(nb::handle value) {
  return PyTuple_Check(value.ptr()) != 0 || PyList_Check(value.ptr()) != 0;
}

bool is_mapping(nb::handle value) {
  return PyDict_Check(value.ptr()) != 0 || nb::isinstance(value, imported("collections.abc", "Mapping"));
}

// Of the first tensor that has a dimension; nullopt: there is none.
std::optional<std::int64_t> first_length(PyTypeObject* tensor, nb::handle value) {
  if (PyObject_TypeCheck(value.ptr(), tensor) != 0) {
    if (integer_of(value.attr("dim")()) == 0) return std::nullopt;
    return integer_of(value.attr("size")(0));
  }
  nb::object items;
  if (is_sequence(value)) {
    items = nb::borrow(value);
  } else if (is_mapping(value)) {
    items = value.attr("values")();
  } else {
    return std::nullopt;
  }
  for (const nb::handle item : items) {
    if (const auto length = first_length(tensor, item)) return length;
  }
  return std::nullopt;
}

}  // namespace

std::optional<nb::object> next_batch(nb::handle pass) {
  PyObject* const batch = PyIter_Next(pass.ptr());
  if (batch != nullptr) return nb::steal(batch);
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  return std::nullopt;
}

bool is_of_loader(nb::handle batch) {
  PyObject* const object = batch.ptr();  // Most often one of these, which costs nothing to see.
  if (PyTuple_CheckExact(object) != 0 || PyList_CheckExact(object) != 0 || PyDict_CheckExact(object) != 0) return false;
  return nb::isinstance(batch, imported("headrace.batch", "Batch"));
}

std::int64_t batch_samples(nb::handle batch) {
  if (is_of_loader(batch)) {
    const nb::object valid = nb::getattr(batch, "fields")["valid"];  // Others may be ragged.
    return static_cast<std::int64_t>(nb::len(valid));
  }
  const nb::object tensor = tensor_type();
  if (tensor.is_none()) return 1;
  return first_length(reinterpret_cast<PyTypeObject*>(tensor.ptr()), batch).value_or(1);
}

}  // namespace headrace::python
