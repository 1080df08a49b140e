// Work on a CUDA device captured as a CUDA graph.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <memory>

#include "torch/device/accelerator.h"

namespace headrace {

// Accelerator::capture() on `stream`, which is none of the default streams; its device is the current one. What is
// queued on the current stream afterwards runs after what the capture itself had to compute.
std::unique_ptr<CapturedWork> capture_graph(const c10::cuda::CUDAStream& stream, const std::function<void()>& work);

}  // namespace headrace
