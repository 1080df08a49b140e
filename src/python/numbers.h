// The numbers of a tensor of Python's, in its own memory.
#pragma once

#include <pybind11/pybind11.h>

#include <span>

namespace headrace::python {

// Of a tensor as headrace._tensors makes them flat: dense, of one dimension, on the CPU. `Number` is float, double or
// std::uint8_t, and the tensor's own type. Valid as long as the tensor lives.
template <class Number>
std::span<const Number> numbers_of(pybind11::handle flat);

}  // namespace headrace::python
