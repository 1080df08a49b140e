// Host batches as tensors, without a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/loader.h>

#include <cstddef>
#include <string_view>

namespace headrace {

// A view of one field of a host batch; the tensor holds the batch, so its memory goes back to the loader's pool when
// the last tensor over it dies. Thread-safe.
at::Tensor field_tensor(const Batch& batch, std::string_view field);
at::Tensor field_tensor(const Batch& batch, std::size_t position);  // In the schema.

// Of a field what says how its samples lie, as BatchField has it, each a view that holds the batch; undefined where
// there is none.
struct FieldShape {
  at::Tensor offsets;  // (N + 1) int64, of a ragged field.
  at::Tensor shapes;   // (N, axes) int64, of one that differs in more than its first axis.
  at::Tensor present;  // (N) uint8, of an optional one.
};
FieldShape field_shape(const Batch& batch, std::size_t position);

}  // namespace headrace
