// Host batches as tensors, without a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/loader.h>

namespace headrace {

// A view of one field of a host batch; the tensor holds the batch, so its memory goes back to the loader's pool when
// the last tensor over it dies. Thread-safe.
at::Tensor field_tensor(const Batch& batch, std::string_view field);

}  // namespace headrace
