#include "python/numbers.h"

#include <cstddef>
#include <cstdint>

#include "core/base/fail.h"
#include "python/tensor_object.h"

namespace headrace::python {

namespace py = pybind11;

template <class Number>
std::span<const Number> numbers_of(py::handle flat) {
  const at::Tensor tensor = tensor_of(flat, "numbers");
  HEADRACE_CHECK(tensor.dim() == 1 && tensor.is_contiguous() && tensor.is_cpu(), "python: wanted a flat tensor");
  return {tensor.const_data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

template std::span<const float> numbers_of<float>(py::handle flat);
template std::span<const double> numbers_of<double>(py::handle flat);
template std::span<const std::uint8_t> numbers_of<std::uint8_t>(py::handle flat);

}  // namespace headrace::python
