#include "python/any_loader.h"

#include <fmt/format.h>

#include <utility>

#include "python/tensor_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

bool is_iterable(const py::object& object) {
  return py::hasattr(object, "__iter__");
}

std::optional<std::int64_t> samples_in(py::handle batch) {
  if (is_tensor(batch)) {
    const at::Tensor tensor = tensor_of(batch, "batch");
    if (tensor.dim() == 0) return std::nullopt;
    return tensor.size(0);
  }
  if (py::isinstance<py::dict>(batch)) {
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(batch)) {
      if (const auto samples = samples_in(value)) return samples;
    }
  } else if (py::isinstance<py::tuple>(batch) || py::isinstance<py::list>(batch)) {
    for (const py::handle value : py::reinterpret_borrow<py::sequence>(batch)) {
      if (const auto samples = samples_in(value)) return samples;
    }
  }
  return std::nullopt;
}

}  // namespace

AnyLoader::AnyLoader(py::object loader) : loader_(std::move(loader)) {
  if (is_iterable(loader_) || PyCallable_Check(loader_.ptr()) != 0) return;
  throw py::type_error(
      fmt::format("loader: wanted a headrace.Loader, a DataLoader, a list of batches or a function that returns an "
                  "iterable, found {}",
                  Py_TYPE(loader_.ptr())->tp_name));
}

py::iterator AnyLoader::pass() const {
  return py::iter(is_iterable(loader_) ? loader_ : loader_());
}

bool AnyLoader::single_pass() const {
  return PyIter_Check(loader_.ptr()) != 0;
}

std::optional<std::int64_t> AnyLoader::batches() const {
  if (!py::hasattr(loader_, "__len__")) return std::nullopt;
  const Py_ssize_t length = PyObject_Length(loader_.ptr());
  if (length >= 0) return length;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();  // A DataLoader over an iterable data set has __len__ and raises this in it.
  return std::nullopt;
}

std::optional<py::object> next_batch(py::iterator& pass) {
  PyObject* batch = PyIter_Next(pass.ptr());
  if (batch != nullptr) return py::reinterpret_steal<py::object>(batch);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return std::nullopt;
}

std::int64_t batch_samples(py::handle batch) {
  return samples_in(batch).value_or(1);
}

}  // namespace headrace::python
