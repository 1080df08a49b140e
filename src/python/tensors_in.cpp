#include "python/tensors_in.h"

#include "python/tensor_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

bool is_mapping(py::handle value) {
  if (py::isinstance<py::dict>(value)) return true;
  // Never destroyed: a module may be gone when statics are.
  static const auto& mapping = *new py::object(py::module_::import("collections.abc").attr("Mapping"));
  return py::isinstance(value, mapping);
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
  }
  return false;
}

}  // namespace headrace::python
