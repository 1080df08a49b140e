// Graphs that are launched fast.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace headrace {

// Puts kernels that write the same in the place of the graph's memset nodes, of which libraries such as cuDNN leave one
// beside most convolutions. A graph of kernels alone, one after the other, is launched in a time that hardly grows with
// their number; one with 70 memsets among 890 kernels, ResNet-50's, took the host 120 us (docs/measured/gpu.md). A node
// that cannot be replaced stays. Returns how many were. Not while a stream of this thread is captured.
std::size_t replace_memset_nodes(cudaGraph_t graph, c10::DeviceIndex index);

}  // namespace headrace
