#include "python/tensors_in.h"

#include "python/tensor_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

bool is_mapping(py::handle value) {
  // Looked up each time, as is_of_loader() does.
  return py::isinstance<py::dict>(value) ||
         py::isinstance(value, py::module_::import("collections.abc").attr("Mapping"));
}

// An object of a dataclass; a module is none, whose parameters are its own.
bool is_record(py::handle value) {
  return py::hasattr(py::type::handle_of(value), "__dataclass_fields__") &&
         !py::isinstance(value, py::module_::import("torch.nn").attr("Module"));
}

}  // namespace

bool find_tensor(py::handle value, const std::function<bool(const at::Tensor&)>& found) {
  if (is_tensor(value)) return found(tensor_of(value, "batch"));
  if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(value)) {
      if (find_tensor(item, found)) return true;
    }
  } else if (is_mapping(value)) {
    for (const py::handle item : value.attr("values")()) {
      if (find_tensor(item, found)) return true;
    }
  } else if (is_record(value)) {
    for (const py::handle field : py::module_::import("dataclasses").attr("fields")(value)) {
      const py::object name = field.attr("name");
      const py::object item = py::getattr(value, name, py::none());
      if (find_tensor(item, found)) return true;
    }
  }
  return false;
}

}  // namespace headrace::python
