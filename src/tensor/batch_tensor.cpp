#include "tensor/batch_tensor.h"

#include <ATen/ops/from_blob.h>

namespace headrace {
namespace {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return at::kByte;
    case DType::i64:
      return at::kLong;
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
  }
  fail(ErrorCode::internal, "tensor: batch field of unknown type {}", static_cast<int>(dtype));
}

}  // namespace

at::Tensor field_tensor(const Batch& batch, std::string_view name) {
  const BatchField& field = batch.field(name);
  return at::for_blob(field.bytes.data(), field.shape)
      .strides(field.strides)
      .deleter([batch](void*) {})  // Its copy of the batch is the owner; it dies with the tensor's storage.
      .options(at::TensorOptions().dtype(scalar_type(field.dtype)))
      .target_device(at::Device(at::kCPU))  // Known: spares the look-up of the pointer's device.
      .make_tensor();
}

}  // namespace headrace
