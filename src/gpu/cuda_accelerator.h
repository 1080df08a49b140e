// The Accelerator of a CUDA device.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "torch/device/accelerator.h"

namespace headrace {

// After LibTorch's CUDA was initialised. Takes one stream of LibTorch's.
std::unique_ptr<Accelerator> make_cuda_accelerator(c10::DeviceIndex index);

}  // namespace headrace
