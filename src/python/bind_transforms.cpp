#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <headrace/error.h>
#include <headrace/operation.h>
#include <headrace/option_fields.h>
#include <headrace/options/transforms.h>
#include <headrace/transform.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/options/contradictions.h"
#include "python/bindings.h"
#include "python/keywords.h"
#include "python/tensor_object.h"
#include "python/transform_steps.h"
#include "torch/tensor/scalar_type.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

py::dict operation_table(const std::string& name, const py::dict& parameters) {
  TransformSpec operation;
  fields_of(operation).front().set(name);
  const std::string prefix = name + ".";
  set_keywords(fields_of(operation, prefix), parameters, prefix);
  if (const std::string fault = operation_contradiction(operation, prefix); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, fault);
  }
  static_cast<void>(make_operation(operation));  // Refuses what no kernel does.
  return keywords_of(fields_of(operation));
}

// Whether its bytes lie one behind the other.
bool is_dense(const py::buffer_info& given) {
  py::ssize_t step = given.itemsize;
  for (py::ssize_t axis = given.ndim; axis-- > 0;) {
    const auto place = static_cast<std::size_t>(axis);
    if (given.shape[place] > 1 && given.strides[place] != step) return false;
    step *= given.shape[place];
  }
  return true;
}

// Of a file's bytes, or of an array of pixels, where gray ones may leave out the axis of channels.
Payload payload_of(const py::buffer_info& given) {
  const bool is_file = given.ndim == 1, is_image = given.ndim == 2 || given.ndim == 3;
  if (given.format != py::format_descriptor<std::uint8_t>::format() || !(is_file || is_image) || !is_dense(given)) {
    fail(ErrorCode::invalid_argument,
         "image: an array of {} axes and format \"{}\"{}; wanted the bytes of a JPEG or PNG file, or uint8 pixels "
         "(height, width, channels) in C order",
         given.ndim, given.format, is_dense(given) ? "" : ", not in C order");
  }
  const std::span bytes{static_cast<const std::uint8_t*>(given.ptr), static_cast<std::size_t>(given.size)};
  if (is_file) return Payload::of_file(bytes);
  return Payload::of_pixels(bytes, given.shape[0], given.shape[1], given.ndim == 3 ? given.shape[2] : 1);
}

// PIL's images and tensors become arrays.
py::buffer buffer_of(const py::object& image) {
  py::object held = image;
  const bool is_array = py::hasattr(image, "__array_interface__") || py::hasattr(image, "__array__");
  if (PyObject_CheckBuffer(image.ptr()) == 0 && is_array) held = py::module_::import("numpy").attr("asarray")(image);
  if (PyObject_CheckBuffer(held.ptr()) != 0) return py::reinterpret_borrow<py::buffer>(held);
  fail(ErrorCode::invalid_argument, "image: wanted the bytes of a JPEG or PNG file, or pixels; found {}",
       std::string(Py_TYPE(image.ptr())->tp_name));
}

py::object apply(const Transform& transform, const py::object& image) {
  const py::buffer buffer = buffer_of(image);
  const py::buffer_info given = buffer.request();
  const Payload payload = payload_of(given);
  const auto& [height, width, channels] = transform.sides();
  const bool planes = transform.layout() == PixelLayout::nchw;
  const std::vector<std::int64_t> shape =
      planes ? std::vector<std::int64_t>{channels, height, width} : std::vector<std::int64_t>{height, width, channels};
  at::Tensor made = at::empty(shape, at::TensorOptions().dtype(scalar_type(transform.dtype())));
  {
    const py::gil_scoped_release released;
    transform.apply(payload, {static_cast<std::byte*>(made.mutable_data_ptr()), transform.image_bytes()});
  }
  return object_of(planes ? made : made.permute({2, 0, 1}));
}

}  // namespace

void register_transforms(py::module_& module) {
  module.def("operation_table", &operation_table, py::arg("name"), py::arg("parameters"),
             "The table of an operation of that name in a list of transforms: `name` and every parameter, those given "
             "as they are understood, the others at their defaults.");
  py::class_<Transform>(module, "Transform",
                        "What evaluation makes of an image, without a Loader: the same bytes. From several threads at "
                        "once.")
      .def_static("from_run", &Transform::from_run, py::arg("run"),
                  "Of the run of `headrace train` or `tune` whose folder this is, by its eval_transform.toml.")
      .def("apply", &apply, py::arg("image"),
           "The tensor (C, H, W) of the bytes of a JPEG or PNG file, or of uint8 pixels (H, W, C): an array, a tensor, "
           "an image of PIL's. A file is decoded as the Loader decodes it.")
      .def(
          "explain", [](const Transform& transform) { return steps_of(transform.explain()); },
          "The operations in order, as Loader.explain()[\"transforms\"] tells them.");
}

}  // namespace headrace::python
