#include "python/core/image_memory.h"

#include <headrace/error.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "python/core/arrays.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// Whether its bytes lie one behind the other.
bool is_dense(const Py_buffer& given) {
  Py_ssize_t step = given.itemsize;
  for (int axis = given.ndim; axis-- > 0;) {
    if (given.shape[axis] > 1 && given.strides[axis] != step) return false;
    step *= given.shape[axis];
  }
  return true;
}

Payload payload_of(const Buffer& lent) {
  const Py_buffer& given = lent.view();
  const std::string_view format = given.format == nullptr ? "B" : given.format;
  const bool is_file = given.ndim == 1, is_image = given.ndim == 2 || given.ndim == 3;
  if (format != "B" || !(is_file || is_image) || !is_dense(given)) {
    fail(ErrorCode::invalid_argument,
         "image: an array of {} axes and format \"{}\"{}; wanted the bytes of a JPEG or PNG file, or uint8 pixels "
         "(height, width, channels) in C order",
         given.ndim, format, is_dense(given) ? "" : ", not in C order");
  }
  if (is_file) return Payload::of_file(lent.bytes());
  return Payload::of_pixels(lent.bytes(), given.shape[0], given.shape[1], given.ndim == 3 ? given.shape[2] : 1);
}

// PIL's images and tensors become arrays.
nb::object lender_of(const nb::object& image) {
  nb::object lender = image;
  const bool is_array = nb::hasattr(image, "__array_interface__") || nb::hasattr(image, "__array__");
  if (PyObject_CheckBuffer(image.ptr()) == 0 && is_array) lender = imported("numpy", "asarray")(image);
  if (PyObject_CheckBuffer(lender.ptr()) != 0) return lender;
  fail(ErrorCode::invalid_argument, "image: wanted the bytes of a JPEG or PNG file, or pixels; found {}",
       class_name(image));
}

// What an image is to be written into, or may be.
struct Place {
  std::string dtype{};
  Shape shape{};
  Shape strides{};           // In bytes.
  std::string refusal{};     // Why it cannot be written; empty: it can.
  std::int64_t address = 0;  // Of a tensor; 0: an array lends its memory.
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
std::string wanted_text(const Place& wanted, PixelLayout layout) {
  return fmt::format(
      "a writable {} {} ({}) {}", wanted.dtype, wanted.dtype == "bfloat16" ? "tensor" : "tensor or array",
      fmt::join(wanted.shape, ", "),
      layout == PixelLayout::nchw ? "in C order" : "that lies pixel by pixel, as images of a channels-last batch do");
}

// As headrace._image_place tells it; nullopt: neither a tensor nor an array.
std::optional<Place> place_in(const nb::object& out) {
  const nb::object told = imported("headrace._image_place", "place_of")(out);
  if (told.is_none()) return std::nullopt;
  const auto place = nb::cast<nb::tuple>(told);
  return Place{.dtype = text_of(place[0]),
               .shape = nb::cast<Shape>(place[1]),
               .strides = nb::cast<Shape>(place[2]),
               .refusal = text_of(place[3]),
               .address = integer_of(place[4])};
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
       fault.empty() ? "" : ", ", fault, wanted_text(wanted, transform.layout()));
}

}  // namespace

ImageInput::ImageInput(const nb::object& image)
    : held_(lender_of(image), PyBUF_STRIDES | PyBUF_FORMAT), payload_(payload_of(held_)) {}

ImageOutput::ImageOutput(const nb::object& out, const Transform& transform, const ImageInput& image) : held_(out) {
  const std::optional<Place> place = place_in(out);
  if (!place) {
    fail(ErrorCode::invalid_argument, "out: {}; wanted {}", class_name(out),
         wanted_text(place_for(transform), transform.layout()));
  }
  require_place(*place, transform);
  auto* begin = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(place->address));
  if (begin == nullptr) {
    array_.emplace(out, PyBUF_STRIDES | PyBUF_WRITABLE);
    begin = static_cast<std::byte*>(array_->view().buf);
  }
  bytes_ = {begin, transform.image_bytes()};
  const std::span read = std::as_bytes(image.payload().bytes);
  const std::less<const std::byte*> before;  // Orders pointers into different memory, too.
  if (before(read.data(), begin + bytes_.size()) && before(begin, read.data() + read.size())) {
    fail(ErrorCode::invalid_argument, "out: shares memory with the image; wanted memory of its own");
  }
  if (!array_) imported("headrace._image_place", "note_change")(out);
}

std::shared_ptr<std::byte> new_memory(const Transform& transform) {
  constexpr std::align_val_t kAlignment{64};  // As torch's own memory has it.
  auto* const bytes = static_cast<std::byte*>(::operator new(transform.image_bytes(), kAlignment));
  return {bytes, [](std::byte* memory) { ::operator delete(memory, kAlignment); }};
}

nb::object image_over(std::shared_ptr<std::byte> memory, const Transform& transform) {
  const Place place = place_for(transform);
  Shape strides = place.strides;
  for (std::int64_t& stride : strides) stride /= bytes_of(transform.dtype());
  const ArrayMemory values{memory.get(), transform.dtype(), place.shape, strides};
  return ArrayMaker{}.over(values, std::move(memory));  // Owners: the arrays over it.
}

}  // namespace headrace::python
