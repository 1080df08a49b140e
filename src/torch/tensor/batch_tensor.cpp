#include "torch/tensor/batch_tensor.h"

#include <ATen/ops/from_blob.h>

#include "torch/tensor/scalar_type.h"

namespace headrace {
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
