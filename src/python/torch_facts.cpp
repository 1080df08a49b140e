#include "python/torch_facts.h"

#include "core/hardware/machine.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// The module; None: it is not loaded.
py::object loaded_torch() {
  PyObject* const torch = PyImport_GetModule(py::str("torch").ptr());
  if (torch != nullptr) return py::reinterpret_steal<py::object>(torch);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return py::none();
}

}  // namespace

py::object tensor_type() {
  const py::object torch = loaded_torch();
  return torch.is_none() ? torch : py::object(torch.attr("Tensor"));
}

std::int64_t compute_threads() {
  const py::gil_scoped_acquire gil;
  const py::object torch = loaded_torch();
  return torch.is_none() ? detect_machine().cores_usable : py::cast<std::int64_t>(torch.attr("get_num_threads")());
}

std::string torch_version() {
  const py::gil_scoped_acquire gil;
  const py::object torch = loaded_torch();
  if (torch.is_none()) return "none";
  const auto version = py::cast<std::string>(py::str(torch.attr("__version__")));
  return version.substr(0, version.find('+'));
}

}  // namespace headrace::python
