// Tensors across the border: the same memory, version counter and autograd graph on both sides.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <string>

namespace headrace::python {

bool is_tensor(pybind11::handle object);
// The tensor that a Python torch.Tensor is. Error{invalid_argument}, beginning with `what`, for anything else.
at::Tensor tensor_of(pybind11::handle object, const std::string& what);
// The Python object of a tensor: always the same one for the same tensor.
pybind11::object object_of(const at::Tensor& tensor);

}  // namespace headrace::python
