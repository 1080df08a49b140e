// Memory that objects of Python's lend: bytes, arrays, memory views.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::python {

// Holds what it points into for as long as it lives. Made and destroyed under the GIL.
class Buffer {
 public:
  // `flags` as PyObject_GetBuffer() has them: PyBUF_SIMPLE, bytes one behind the other. Python's exception where the
  // object lends no such memory.
  Buffer(nanobind::handle object, int flags);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const Py_buffer& view() const noexcept { return view_; }
  std::span<const std::uint8_t> bytes() const noexcept;

 private:
  Py_buffer view_{};
};

// The numbers of an array of int64, such as array.array("q").
std::vector<std::int64_t> integers_in(nanobind::handle array);

}  // namespace headrace::python
