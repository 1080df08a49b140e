// Order between two streams of a CUDA device, without the host waiting.
#pragma once

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

namespace headrace {

// What is queued on `later` from now on runs after all that is queued on `earlier` by now.
inline void put_after(const c10::cuda::CUDAStream& later, const c10::cuda::CUDAStream& earlier) {
  c10::cuda::CUDAEvent reached;  // CUDA keeps what it needs of it beyond its end.
  reached.record(earlier);
  reached.block(later);
}

}  // namespace headrace
