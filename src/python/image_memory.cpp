#include "python/image_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <headrace/error.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/fail.h"
#include "python/tensor_object.h"
#include "torch/tensor/scalar_type.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

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

// Where NumPy is not loaded there is none.
bool is_array(const py::object& value) {
  const py::object numpy = py::module_::import("sys").attr("modules").attr("get")("numpy");
  return !numpy.is_none() && py::isinstance(value, numpy.attr("ndarray"));
}

// What an image is to be written into, or may be.
struct Place {
  std::string dtype{};
  Shape shape{};
  Shape strides{};        // In bytes.
  std::string refusal{};  // Why it cannot be written; empty: it can.
};

Place place_for(const Transform& transform) {
  const auto& [height, width, channels] = transform.size();
  const std::int64_t element = bytes_of(transform.dtype());
  Place place{.dtype = std::string(name_of(transform.dtype())), .shape = {channels, height, width}};
  if (transform.layout() == PixelLayout::nchw) {
    place.strides = {element * height * width, element * width, element};
  } else {
    place.strides = {element, element * width * channels, element * channels};
  }
  return place;
}

// No array that bfloat16 would be the type of lends its memory.
std::string text_of(const Place& wanted, PixelLayout layout) {
  return fmt::format(
      "a writable {} {} ({}) {}", wanted.dtype, wanted.dtype == "bfloat16" ? "tensor" : "tensor or array",
      fmt::join(wanted.shape, ", "),
      layout == PixelLayout::nchw ? "in C order" : "that lies pixel by pixel, as images of a channels-last batch do");
}

Place place_in(const at::Tensor& tensor) {
  const auto dtype = headrace::dtype_of(tensor.scalar_type());
  Place place{.dtype = dtype ? std::string(name_of(*dtype)) : std::string(c10::toString(tensor.scalar_type()))};
  if (tensor.is_nested()) {  // Has no one shape.
    place.refusal = "nested";
    return place;
  }
  place.shape = tensor.sizes().vec();
  if (tensor.layout() != at::kStrided) {  // Has no strides.
    place.refusal = "not dense";
    return place;
  }
  for (const std::int64_t stride : tensor.strides()) place.strides.push_back(stride * tensor.element_size());
  if (!tensor.is_cpu()) {
    place.refusal = "on " + tensor.device().str();
  } else if (tensor.requires_grad() && c10::GradMode::is_enabled()) {
    place.refusal = "requires grad";
  }
  return place;
}

Place place_in(const py::object& array) {
  Place place{.dtype = py::str(array.attr("dtype")),
              .shape = array.attr("shape").cast<Shape>(),
              .strides = array.attr("strides").cast<Shape>()};
  const py::object flags = array.attr("flags");
  if (!flags.attr("writeable").cast<bool>()) {
    place.refusal = "read-only";
  } else if (!flags.attr("aligned").cast<bool>()) {
    place.refusal = "not aligned";
  } else if (place.dtype == "bfloat16") {
    place.refusal = "an array";
  }
  return place;
}

// Axes of one element may have any stride.
bool lies_as(const Place& found, const Place& wanted) {
  for (std::size_t axis = 0; axis < wanted.shape.size(); ++axis) {
    if (wanted.shape[axis] > 1 && found.strides[axis] != wanted.strides[axis]) return false;
  }
  return true;
}

void require_place(const Place& found, const Transform& transform) {
  const Place wanted = place_for(transform);
  std::string fault = found.refusal;
  const bool fits = found.dtype == wanted.dtype && found.shape == wanted.shape;
  if (fits && fault.empty()) {
    if (lies_as(found, wanted)) return;
    fault = transform.layout() == PixelLayout::nchw ? "not in C order" : "not pixel by pixel";
  }
  fail(ErrorCode::invalid_argument, "out: {} ({}){}{}; wanted {}", found.dtype, fmt::join(found.shape, ", "),
       fault.empty() ? "" : ", ", fault, text_of(wanted, transform.layout()));
}

}  // namespace

ImageInput::ImageInput(const py::object& image) : held_(buffer_of(image).request()), payload_(payload_of(held_)) {}

ImageOutput::ImageOutput(const py::object& out, const Transform& transform, const ImageInput& image) {
  std::byte* begin = nullptr;
  if (is_tensor(out)) {
    tensor_ = tensor_of(out, "out");
    require_place(place_in(tensor_), transform);
    tensor_.unsafeGetTensorImpl()->bump_version();
    begin = static_cast<std::byte*>(tensor_.mutable_data_ptr());
  } else {
    if (!is_array(out)) {
      fail(ErrorCode::invalid_argument, "out: {}; wanted {}", std::string(Py_TYPE(out.ptr())->tp_name),
           text_of(place_for(transform), transform.layout()));
    }
    require_place(place_in(out), transform);
    array_ = py::reinterpret_borrow<py::buffer>(out).request(/*writable=*/true);
    begin = static_cast<std::byte*>(array_.ptr);
  }
  bytes_ = {begin, transform.image_bytes()};
  const std::span read = std::as_bytes(image.payload().bytes);
  const std::less<const std::byte*> before;  // Orders pointers into different memory, too.
  if (before(read.data(), begin + bytes_.size()) && before(begin, read.data() + read.size())) {
    fail(ErrorCode::invalid_argument, "out: shares memory with the image; wanted memory of its own");
  }
}

at::Tensor new_image(const Transform& transform) {
  const auto& [height, width, channels] = transform.size();
  const auto type = at::TensorOptions().dtype(scalar_type(transform.dtype()));
  if (transform.layout() == PixelLayout::nchw) return at::empty({channels, height, width}, type);
  return at::empty({height, width, channels}, type).permute({2, 0, 1});
}

}  // namespace headrace::python
