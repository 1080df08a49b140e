#include "torch/train/memory_layout.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "torch/tensor/batch_tensor.h"

namespace headrace {

bool has_layout(const at::Tensor& tensor) {
  return tensor.dim() == 4 || tensor.dim() == 5;
}

// Not Tensor::contiguous: with one channel or one pixel both layouts are the same bytes, so it would keep the strides.
at::Tensor in_layout(const at::Tensor& tensor, MemoryFormat format) {
  const bool last = format == MemoryFormat::channels_last;
  if (tensor.size(1) == 1 && tensor.is_contiguous()) {
    std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
    for (std::size_t i = strides.size() - 1; i-- > 2;) {
      strides[i] = strides[i + 1] * tensor.size(static_cast<std::int64_t>(i) + 1);
    }
    const std::int64_t pixels = strides[2] * tensor.size(2);
    strides[0] = pixels;
    strides[1] = last ? 1 : pixels;
    return at::as_strided(tensor, tensor.sizes(), strides, tensor.storage_offset());
  }
  const at::MemoryFormat channels_last =
      tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  return tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false,
                   last ? channels_last : at::MemoryFormat::Contiguous);
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
