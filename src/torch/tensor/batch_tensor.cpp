#include "torch/tensor/batch_tensor.h"

#include <ATen/ops/from_blob.h>

#include "torch/tensor/scalar_type.h"

namespace headrace {
namespace {

at::Tensor view_of(const Batch& batch, const void* values, DType dtype, at::IntArrayRef shape,
                   at::IntArrayRef strides) {
  return at::for_blob(const_cast<void*>(values), shape)  // A tensor may be written to, as its batch may.
      .strides(strides)
      .deleter([batch](void*) {})  // Its copy of the batch is the owner; it dies with the tensor's storage.
      .options(at::TensorOptions().dtype(scalar_type(dtype)))
      .target_device(at::Device(at::kCPU))  // Known: spares the look-up of the pointer's device.
      .make_tensor();
}

at::Tensor tensor_of(const Batch& batch, const BatchField& field) {
  return view_of(batch, field.bytes.data(), field.dtype, field.shape, field.strides);
}

}  // namespace

at::Tensor field_tensor(const Batch& batch, std::string_view name) {
  return tensor_of(batch, batch.field(name));
}

at::Tensor field_tensor(const Batch& batch, std::size_t position) {
  return tensor_of(batch, batch.field(position));
}

FieldShape field_shape(const Batch& batch, std::size_t position) {
  const BatchField& field = batch.field(position);
  const std::int64_t samples = batch.size();
  FieldShape shape;
  if (field.is_ragged()) shape.offsets = view_of(batch, field.offsets.data(), DType::i64, {samples + 1}, {1});
  if (!field.shapes.empty()) {
    const std::int64_t axes = std::ssize(field.shapes) / samples;
    shape.shapes = view_of(batch, field.shapes.data(), DType::i64, {samples, axes}, {axes, 1});
  }
  if (!field.present.empty()) shape.present = view_of(batch, field.present.data(), DType::u8, {samples}, {1});
  return shape;
}

}  // namespace headrace
