// The numbers of a tensor of Python's, in its own memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

namespace headrace::python {

// Of a tensor as headrace._tensors makes them flat: dense, of one dimension, on the CPU. `Number` is float, double or
// std::uint8_t, and the tensor's own type. The memory lives as long as this. Made and destroyed under the GIL.
template <class Number>
class FlatNumbers {
 public:
  // Error{invalid_argument} for a tensor of another kind, type or rank. What Python raises on the way goes on.
  explicit FlatNumbers(nanobind::handle flat);
  std::span<const Number> span() const { return {array_.data(), array_.size()}; }

 private:
  nanobind::ndarray<const Number, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu> array_;
};

}  // namespace headrace::python
