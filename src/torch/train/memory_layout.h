// The layouts of images and of clips in memory, and of the weights of their convolutions.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/batch.h>
#include <headrace/options/model.h>
#include <headrace/tensor_batch.h>

namespace headrace {

// Whether in_layout() takes it: four dimensions, or five, of which the second is the channels.
bool has_layout(const at::Tensor& tensor);

// `tensor`, of four or five dimensions, in that layout, with the strides that LibTorch gives it: operators choose their
// kernel by the strides. Copies only where the bytes must move.
at::Tensor in_layout(const at::Tensor& tensor, MemoryFormat format);

// Every field of the batch, without a copy but of its first image where that has four dimensions and other bytes in
// this layout. Other images are as stored.
TensorBatch tensors_of(const Batch& batch, MemoryFormat format);

}  // namespace headrace
