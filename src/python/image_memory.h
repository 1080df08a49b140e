// Images that Python holds: one to be read, and the memory that one is written into.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/payload.h>
#include <headrace/transform.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>

namespace headrace::python {

// The bytes of a JPEG or PNG file, or uint8 pixels (height, width, channels), of which gray ones may leave out the last
// axis: bytes, an array, a tensor, an image of PIL's. Holds what it points into. Made and destroyed under the GIL.
class ImageInput {
 public:
  explicit ImageInput(const pybind11::object& image);  // Error{invalid_argument} begins with "image:".

  const Payload& payload() const noexcept { return payload_; }

 private:
  pybind11::buffer_info held_;
  Payload payload_;
};

// The memory of a tensor or of a NumPy array that takes what `transform` makes. Holds it, as above. A tensor counts one
// more change in place, which autograd goes by.
class ImageOutput {
 public:
  // Error{invalid_argument} begins with "out:" and says what would fit: it differs in type, shape or order in memory,
  // cannot be written, or shares memory with `image`.
  ImageOutput(const pybind11::object& out, const Transform& transform, const ImageInput& image);

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  at::Tensor tensor_;
  pybind11::buffer_info array_;
  std::span<std::byte> bytes_{};
};

// A new tensor (C, H, W) for what `transform` makes, in the order in memory of its layout.
at::Tensor new_image(const Transform& transform);

}  // namespace headrace::python
