#include "python/core/arrays.h"

#include <headrace/field.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// DLManagedTensor of https://dmlc.github.io/dlpack/latest/c_api.html, of which nanobind has the first part. The form
// without a version, which every torch takes.
struct ManagedTensor {
  nb::dlpack::dltensor tensor;
  void* context = nullptr;
  void (*deleter)(ManagedTensor* self) = nullptr;
};
static_assert(sizeof(nb::dlpack::dltensor) == 48 && sizeof(ManagedTensor) == 64);

constexpr const char* kCapsule = "dltensor";  // Whoever takes the tensor gives the capsule another name.

// One allocation a tensor.
struct HeldTensor {
  ManagedTensor managed;
  std::array<std::int64_t, kRankMax + 1> shape{}, strides{};  // The batch's axis, and those of a sample.
  std::shared_ptr<const void> owner;
};

// By torch's names, so that a type that is added to headrace/dtypes.inc is known here, too.
nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  constexpr std::array<std::pair<std::string_view, Code>, 5> kCodes{{{"bfloat", Code::Bfloat},
                                                                     {"float", Code::Float},
                                                                     {"uint", Code::UInt},
                                                                     {"int", Code::Int},
                                                                     {"bool", Code::Bool}}};
  for (const auto& [prefix, code] : kCodes) {
    if (!name_of(dtype).starts_with(prefix)) continue;
    return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * bytes_of(dtype)), 1};
  }
  fail(ErrorCode::internal, "python: DLPack has no code for {}", name_of(dtype));
}

void end_if_nobody_took_it(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) == 0) return;
  auto* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
  managed->deleter(managed);
}

nb::object capsule_over(const ArrayMemory& memory, std::shared_ptr<const void> owner) {
  auto held = std::make_unique<HeldTensor>();
  HEADRACE_CHECK(memory.shape.size() <= held->shape.size(), "{} axes", memory.shape.size());
  held->owner = std::move(owner);
  std::copy(memory.shape.begin(), memory.shape.end(), held->shape.begin());
  std::copy(memory.strides.begin(), memory.strides.end(), held->strides.begin());
  nb::dlpack::dltensor& tensor = held->managed.tensor;
  tensor.data = const_cast<void*>(memory.values);
  tensor.device.device_type = nb::device::cpu::value;
  tensor.ndim = static_cast<std::int32_t>(memory.shape.size());
  tensor.dtype = dlpack_type(memory.dtype);
  tensor.shape = held->shape.data();
  tensor.strides = held->strides.data();
  held->managed.context = held.get();
  held->managed.deleter = [](ManagedTensor* self) { delete static_cast<HeldTensor*>(self->context); };
  PyObject* const capsule = PyCapsule_New(&held->managed, kCapsule, &end_if_nobody_took_it);
  if (capsule == nullptr) nb::raise_python_error();
  static_cast<void>(held.release());  // The capsule's, or the tensor's.
  return nb::steal(capsule);
}

nb::object numpy_over(const ArrayMemory& memory, std::shared_ptr<const void> owner) {
  auto held = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  const nb::capsule keeper(held.get(),
                           [](void* kept) noexcept { delete static_cast<std::shared_ptr<const void>*>(kept); });
  static_cast<void>(held.release());
  const std::vector<std::size_t> shape(memory.shape.begin(), memory.shape.end());
  return nb::cast(nb::ndarray<nb::numpy>(const_cast<void*>(memory.values), shape.size(), shape.data(), keeper,
                                         memory.strides.data(), dlpack_type(memory.dtype)));
}

}  // namespace

ArrayMaker::ArrayMaker() : from_dlpack_(imported("headrace._arrays", "from_dlpack")()) {}

void ArrayMaker::require(DType dtype, std::string_view what) const {
  if (makes_tensors() || !name_of(dtype).starts_with("bfloat")) return;
  fail(ErrorCode::unsupported,
       "python: {} is {}, which NumPy does not have, and torch is not installed; wanted torch, or another type", what,
       name_of(dtype));
}

nb::object ArrayMaker::over(const ArrayMemory& memory, std::shared_ptr<const void> owner) const {
  if (!makes_tensors()) return numpy_over(memory, std::move(owner));
  return from_dlpack_(capsule_over(memory, std::move(owner)));
}

}  // namespace headrace::python
