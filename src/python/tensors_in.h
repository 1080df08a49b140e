// The tensors of a batch, or of another value of Python's that holds some.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <functional>

namespace headrace::python {

// Tells `found` of every tensor, looking into mappings (dicts, UserDicts such as Hugging Face's BatchEncoding), lists,
// tuples and the fields of dataclasses in their order, until it returns true; returns whether it did. Under the GIL.
bool find_tensor(pybind11::handle value, const std::function<bool(const at::Tensor&)>& found);

}  // namespace headrace::python
