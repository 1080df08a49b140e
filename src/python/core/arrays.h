// Memory of ours as arrays of Python's, without a copy: torch's tensors by DLPack, or NumPy's arrays where torch is not
// installed. Nothing here knows torch but the function that makes a tensor of a DLPack capsule.
#pragma once

#include <headrace/dtype.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace headrace::python {

struct ArrayMemory {
  const void* values;  // May be written to, as a batch may; null where there are none.
  DType dtype;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;  // Elements.
};

// Everything under the GIL, but for the end of an array's memory: a tensor may die in any thread, and lets go of its
// owner without it.
class ArrayMaker {
 public:
  // Asks headrace._arrays, which imports torch where it is installed.
  ArrayMaker();

  bool makes_tensors() const { return !from_dlpack_.is_none(); }
  // Error{unsupported}: there is no torch, and NumPy has no such type. `what` has that type, for the message.
  void require(DType dtype, std::string_view what) const;
  // `owner` keeps the memory and lives as long as the array and its views.
  nanobind::object over(const ArrayMemory& memory, std::shared_ptr<const void> owner) const;

 private:
  nanobind::object from_dlpack_;  // torch.from_dlpack, or None.
};

}  // namespace headrace::python
