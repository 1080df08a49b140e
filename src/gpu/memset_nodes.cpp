#include "gpu/memset_nodes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

namespace headrace {
namespace {

// Ends with what it holds.
class OwnGraph {
 public:
  OwnGraph() = default;
  ~OwnGraph() {
    if (graph != nullptr) C10_CUDA_IGNORE_ERROR(cudaGraphDestroy(graph));
  }
  OwnGraph(const OwnGraph&) = delete;
  OwnGraph& operator=(const OwnGraph&) = delete;

  cudaGraph_t graph = nullptr;
};

bool succeeds(cudaError_t status) {
  if (status == cudaSuccess) return true;
  C10_CUDA_CLEAR_ERROR();
  return false;
}

std::optional<std::vector<cudaGraphNode_t>> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  if (!succeeds(cudaGraphGetNodes(graph, nullptr, &count))) return std::nullopt;
  std::vector<cudaGraphNode_t> nodes(count);
  if (!succeeds(cudaGraphGetNodes(graph, nodes.data(), &count))) return std::nullopt;
  return nodes;
}

// Those that `get` lists beside a node. nullopt: an edge of another kind than "when it has ended", or an error.
template <class Get>
std::optional<std::vector<cudaGraphNode_t>> beside(cudaGraphNode_t node, const Get& get) {
  std::size_t count = 0;
  if (!succeeds(get(node, nullptr, nullptr, &count))) return std::nullopt;
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0 && !succeeds(get(node, nodes.data(), nullptr, &count))) return std::nullopt;
  return nodes;
}

// The node of the kernel by which LibTorch writes this; its parameters live as long as `holder`. nullptr: there is
// none.
cudaGraphNode_t kernel_node(const cudaMemsetParams& memset, const c10::cuda::CUDAStream& stream, OwnGraph& holder) {
  const at::ScalarType type = memset.elementSize == 4 ? at::kInt : memset.elementSize == 2 ? at::kShort : at::kByte;
  const auto elements = static_cast<std::int64_t>(memset.width);
  const at::Tensor target = at::from_blob(memset.dst, {elements}, at::TensorOptions(type).device(stream.device()));
  const std::int64_t value = memset.elementSize == 4   ? static_cast<std::int32_t>(memset.value)
                             : memset.elementSize == 2 ? static_cast<std::int16_t>(memset.value)
                                                       : static_cast<std::uint8_t>(memset.value);
  if (!succeeds(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal))) return nullptr;
  bool is_queued = true;
  try {
    const c10::cuda::CUDAStreamGuard on_stream(stream);
    target.fill_(value);
  } catch (const std::exception&) {
    is_queued = false;
  }
  if (!succeeds(cudaStreamEndCapture(stream.stream(), &holder.graph)) || !is_queued) return nullptr;
  const auto nodes = nodes_of(holder.graph);
  if (!nodes || nodes->size() != 1) return nullptr;
  cudaGraphNodeType type_of_node = cudaGraphNodeTypeEmpty;
  if (!succeeds(cudaGraphNodeGetType(nodes->front(), &type_of_node))) return nullptr;
  return type_of_node == cudaGraphNodeTypeKernel ? nodes->front() : nullptr;
}

bool replace(cudaGraph_t graph, cudaGraphNode_t node, const c10::cuda::CUDAStream& stream) {
  cudaMemsetParams memset{};
  if (!succeeds(cudaGraphMemsetNodeGetParams(node, &memset)) || memset.height != 1 || memset.width == 0) return false;
  OwnGraph holder;
  const cudaGraphNode_t kernel = kernel_node(memset, stream, holder);
  cudaKernelNodeParams parameters{};
  if (kernel == nullptr || !succeeds(cudaGraphKernelNodeGetParams(kernel, &parameters))) return false;
  const auto before = beside(node, cudaGraphNodeGetDependencies);
  const auto after = beside(node, cudaGraphNodeGetDependentNodes);
  if (!before || !after) return false;
  cudaGraphNode_t added = nullptr;
  if (!succeeds(cudaGraphAddKernelNode(&added, graph, before->data(), before->size(), &parameters))) return false;
  const std::vector<cudaGraphNode_t> from(after->size(), added);
  if (succeeds(cudaGraphAddDependencies(graph, from.data(), after->data(), nullptr, after->size())) &&
      succeeds(cudaGraphDestroyNode(node))) {
    return true;
  }
  succeeds(cudaGraphDestroyNode(added));
  return false;
}

}  // namespace

std::size_t replace_memset_nodes(cudaGraph_t graph, c10::DeviceIndex index) {
  const c10::cuda::CUDAGuard device(index);
  const c10::NoGradGuard no_graph;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, index);
  const auto nodes = nodes_of(graph);
  if (!nodes) return 0;
  std::size_t replaced = 0;
  for (const cudaGraphNode_t node : *nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (!succeeds(cudaGraphNodeGetType(node, &type)) || type != cudaGraphNodeTypeMemset) continue;
    if (replace(graph, node, stream)) ++replaced;
  }
  return replaced;
}

}  // namespace headrace
