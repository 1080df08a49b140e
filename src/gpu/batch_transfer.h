// Batches from host memory to a CUDA device while it computes.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "torch/device/accelerator.h"

namespace headrace {

// Takes a stream of its own, and device memory for two batches at the first ones.
std::unique_ptr<BatchTransfer> cuda_batch_transfer(c10::DeviceIndex index);

}  // namespace headrace
