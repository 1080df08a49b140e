#include "python/core/buffer.h"

#include <cstring>

namespace headrace::python {

namespace nb = nanobind;

Buffer::Buffer(nb::handle object, int flags) {
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) nb::raise_python_error();
}

Buffer::~Buffer() {
  PyBuffer_Release(&view_);
}

std::span<const std::uint8_t> Buffer::bytes() const noexcept {
  return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
}

std::vector<std::int64_t> integers_in(nb::handle array) {
  const Buffer lent{array, PyBUF_SIMPLE};
  const auto bytes = lent.bytes();
  std::vector<std::int64_t> integers(bytes.size() / sizeof(std::int64_t));
  if (!integers.empty()) std::memcpy(integers.data(), bytes.data(), integers.size() * sizeof(std::int64_t));
  return integers;
}

}  // namespace headrace::python
