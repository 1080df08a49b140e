#include "torch/train/memory_layout.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "torch/tensor/batch_tensor.h"

namespace headrace {

// Not Tensor::contiguous: with one channel or one pixel both layouts are the same bytes, so it would keep the strides.
at::Tensor in_layout(const at::Tensor& tensor, MemoryFormat format) {
  const bool last = format == MemoryFormat::channels_last;
  const std::int64_t channels = tensor.size(1), height = tensor.size(2), width = tensor.size(3);
  if (channels == 1 && tensor.is_contiguous()) {
    return at::as_strided(tensor, tensor.sizes(), {height * width, last ? 1 : height * width, width, 1},
                          tensor.storage_offset());
  }
  return tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false,
                   last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

TensorBatch tensors_of(const Batch& batch, MemoryFormat format) {
  TensorBatch result;
  bool has_image = false;                                // The first is the one that is trained on.
  const std::size_t fields = batch.fields().size() - 1;  // "valid" is the last.
  for (std::size_t i = 0; i < fields; ++i) {
    const BatchField& field = batch.field(i);
    at::Tensor values = field_tensor(batch, i);
    const bool is_image = field.encoding == Encoding::image && !has_image;
    has_image = has_image || is_image;
    if (is_image && values.dim() == 4) values = in_layout(values, format);
    auto [offsets, shapes, present] = field_shape(batch, i);
    result.add({field.name, std::move(values), std::move(offsets), std::move(shapes), std::move(present)});
  }
  const auto valid = batch.valid();
  if (std::find(valid.begin(), valid.end(), 0) != valid.end()) result.valid = field_tensor(batch, fields);
  return result;
}

}  // namespace headrace
