// Images that Python holds: one to be read, and the memory that one is written into.
#pragma once

#include <headrace/payload.h>
#include <headrace/transform.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "python/core/buffer.h"

namespace headrace::python {

// The bytes of a JPEG or PNG file, or uint8 pixels (height, width, channels), of which gray ones may leave out the last
// axis: bytes, an array, a tensor, an image of PIL's. Holds what it points into. Made and destroyed under the GIL.
class ImageInput {
 public:
  explicit ImageInput(const nanobind::object& image);  // Error{invalid_argument} begins with "image:".

  const Payload& payload() const noexcept { return payload_; }

 private:
  Buffer held_;
  Payload payload_;
};

// The memory of a tensor or of a NumPy array that takes what `transform` makes. Holds it, as above. A tensor counts one
// more change in place, which autograd goes by.
class ImageOutput {
 public:
  // Error{invalid_argument} begins with "out:" and says what would fit: it differs in type, shape or order in memory,
  // cannot be written, or shares memory with `image`.
  ImageOutput(const nanobind::object& out, const Transform& transform, const ImageInput& image);

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  nanobind::object held_;        // The tensor, or the array.
  std::optional<Buffer> array_;  // Of an array.
  std::span<std::byte> bytes_{};
};

// New memory for what `transform` makes, as it comes. From any thread.
std::shared_ptr<std::byte> new_memory(const Transform& transform);
// A tensor or an array (C, H, W) over it, in the order in memory of the transform's layout. Under the GIL.
nanobind::object image_over(std::shared_ptr<std::byte> memory, const Transform& transform);

}  // namespace headrace::python
