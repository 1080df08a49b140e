// Bytes that CPU tensors hold in this process, the most that they held, and a limit for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/error.h>

#include <cstdint>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Counts what CPU tensors hold, in the allocator that LibTorch asks, from the first call on until the process ends:
// bytes as asked for, of every thread, and what oneDNN needs beside tensors. Memory of others is not counted: NumPy's,
// mapped files, buffers of BLAS, what is asked of LibTorch's own allocator by name. Nor is what a tensor that is older
// than the first call gets when it grows, as by resize_(): it goes on asking the allocator of its beginning. Each
// allocation and each free then pays some 0.1 us. Not applied, with the reason, where another allocator holds that
// place with a higher priority or the system reserves no addresses. Call it while no other thread makes tensors, as
// apply_allocator(). A child of a fork counts on from what its parent held, and has no limit.
Applied watch_tensor_memory();
// Counts these, too, each block once, where they are older than the first call: parameters, optimizer state. Those
// whose memory is not LibTorch's are left out. Does nothing where nobody counts. Counts beyond the limit as well. Of a
// sparse tensor, here and below, its indices and values.
void count_tensors(const NamedTensors& tensors);
// What tensor_bytes() would lose if these ended: their blocks that are counted, each once, but for those that a tensor
// beside them lies in, too. Each tensor is listed once. Exact while no other thread makes or ends tensors.
std::int64_t bytes_of_these_alone(const std::vector<at::Tensor>& tensors);

// Any thread. Held now, of what is counted; -1: nobody counts, as another allocator has taken the place since.
std::int64_t tensor_bytes();
// The most since the first call or the last reset; -1 as above.
std::int64_t peak_tensor_bytes();
void reset_peak_tensor_bytes();

// From now on an allocation that would hold more than this is c10::OutOfMemoryError, which names what was asked, held
// and the limit: nothing was allocated then, and what is held stays. 0: none. Begins to count, and is not applied where
// that is not. Error{invalid_argument}: below 0. Any thread may read it.
Applied set_tensor_memory_limit(std::int64_t bytes);
std::int64_t tensor_memory_limit();  // 0: none.

}  // namespace headrace
