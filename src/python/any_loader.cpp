#include "python/any_loader.h"

#include <fmt/format.h>

#include <utility>

#include "python/tensor_object.h"
#include "python/tensors_in.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

bool is_iterable(const py::object& object) {
  return py::hasattr(object, "__iter__");
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

bool AnyLoader::has_estimated_length() const {
  const py::object kind = py::module_::import("torch.utils.data").attr("IterableDataset");
  return py::isinstance(loader_, kind) || py::isinstance(py::getattr(loader_, "dataset", py::none()), kind);
}

std::optional<py::object> next_batch(py::iterator& pass) {
  PyObject* batch = PyIter_Next(pass.ptr());
  if (batch != nullptr) return py::reinterpret_steal<py::object>(batch);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return std::nullopt;
}

bool is_native_loader(py::handle loader) {
  return py::isinstance(loader, py::module_::import("headrace._core").attr("Loader"));
}

// Looked up each time: a static would be made under its own lock, and the import in it may let go of the GIL to one
// that waits for that.
bool is_of_loader(py::handle batch) {
  const PyObject* const object = batch.ptr();  // Most often one of these, which costs nothing to see.
  if (PyTuple_CheckExact(object) != 0 || PyList_CheckExact(object) != 0 || PyDict_CheckExact(object) != 0) return false;
  return py::isinstance(batch, py::module_::import("headrace.batch").attr("Batch"));
}

std::optional<std::int64_t> batch_rows(py::handle batch) {
  if (is_of_loader(batch)) return static_cast<std::int64_t>(py::len(batch.attr("fields")["valid"]));
  std::optional<std::int64_t> rows;
  find_tensor(batch, [&rows](const at::Tensor& tensor) {
    if (tensor.dim() == 0) return false;
    rows = tensor.size(0);
    return true;
  });
  return rows;
}

std::int64_t batch_samples(py::handle batch) {
  if (!is_of_loader(batch)) return batch_rows(batch).value_or(1);
  return tensor_of(batch.attr("fields")["valid"], "valid").sum().item<std::int64_t>();
}

}  // namespace headrace::python
