#include "python/tensor_object.h"

#include <torch/csrc/autograd/python_variable.h>

#include "core/base/fail.h"

namespace headrace::python {

bool is_tensor(pybind11::handle object) {
  return THPVariable_Check(object.ptr());
}

at::Tensor tensor_of(pybind11::handle object, const std::string& what) {
  if (!is_tensor(object)) {
    fail(ErrorCode::invalid_argument, "python: {}: wanted a torch.Tensor, found {}", what,
         std::string(Py_TYPE(object.ptr())->tp_name));
  }
  return THPVariable_Unpack(object.ptr());
}

pybind11::object object_of(const at::Tensor& tensor) {
  PyObject* object = THPVariable_Wrap(tensor);
  if (object == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

}  // namespace headrace::python
