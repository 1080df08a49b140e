#include "python/tensors_in.h"

#include "python/torch_facts.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

bool is_mapping(py::handle value) {
  // Looked up each time, as is_of_loader() does.
  return py::isinstance<py::dict>(value) ||
         py::isinstance(value, py::module_::import("collections.abc").attr("Mapping"));
}

bool find_of_type(PyTypeObject* tensor, py::handle value, const std::function<bool(py::handle)>& found) {
  if (PyObject_TypeCheck(value.ptr(), tensor) != 0) return found(value);
  if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(value)) {
      if (find_of_type(tensor, item, found)) return true;
    }
  } else if (is_mapping(value)) {
    for (const py::handle item : value.attr("values")()) {
      if (find_of_type(tensor, item, found)) return true;
    }
  }
  return false;
}

}  // namespace

bool find_tensor(py::handle value, const std::function<bool(py::handle)>& found) {
  const py::object type = tensor_type();
  return !type.is_none() && find_of_type(reinterpret_cast<PyTypeObject*>(type.ptr()), value, found);
}

}  // namespace headrace::python
