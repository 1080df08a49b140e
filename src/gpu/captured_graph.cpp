#include "gpu/captured_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "gpu/memset_nodes.h"
#include "gpu/stream_order.h"

namespace headrace {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// For putting right what a capture left, one step after the other: the error that ended it is the one to tell.
template <class Step>
void attempt(const Step& step) {
  try {
    step();
  } catch (...) {  // That this step had nothing to do, or could not do it.
  }
}

// LibTorch's graph is left in the middle by a capture that fails: the caching allocators go on asking it which pool to
// take, also when it is gone, and the generator goes on refusing random numbers outside of a capture.
class Graph final : public at::cuda::CUDAGraph {
 public:
  Graph() : CUDAGraph(/*keep_graph=*/true) {}  // So that it can be changed before it is instantiated.

  void record(const std::function<void()>& work) {
    try {
      // Only this thread is kept from what must not happen during a capture, as waiting for the device. Meanwhile other
      // threads may lock pages of host memory and allocate, as a loader's do; in the mode "global" that would end the
      // capture. The backward runs in a thread of autograd's, whose operators are captured because they are queued on
      // the captured stream; its allocations, too, may need memory of the device.
      capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      work();
      capture_end();
      replace_memset_nodes(raw_cuda_graph(), capture_dev_);
      instantiate();
    } catch (...) {
      abandon();
      throw;
    }
  }

 private:
  void abandon() noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(capture_stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t unfinished = nullptr;  // Stays so where the capture is invalid: then it ends with an error.
      C10_CUDA_IGNORE_ERROR(cudaStreamEndCapture(capture_stream_, &unfinished));
      if (unfinished != nullptr) C10_CUDA_IGNORE_ERROR(cudaGraphDestroy(unfinished));
    }
    C10_CUDA_CLEAR_ERROR();
    for (const auto& [state, increment] : captured_generator_states_) {
      state->capturing_ = false;
      state->registered_graphs_.insert(this);  // Or the destructor, which takes it out, ends the process.
    }
    // Once the capture has ended well, the destructor releases the pools. Before it has an id there are none.
    if (capture_ended_ || mempool_id_.first == 0) return;
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    attempt([this] { caching::endAllocateToPool(capture_dev_, mempool_id_); });
    attempt([this, host] { host->end_allocate_to_pool(mempool_id_); });
    attempt([this] { caching::releasePool(capture_dev_, mempool_id_); });
    attempt([this, host] { host->release_pool(mempool_id_); });
  }
};

std::int64_t reserved_bytes(c10::DeviceIndex index) {
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return caching::getDeviceStats(index).reserved_bytes[all].current;
}

class CapturedGraph final : public CapturedWork {
 public:
  explicit CapturedGraph(c10::DeviceIndex index) : index_(index) {}

  void record(const c10::cuda::CUDAStream& stream, const std::function<void()>& work) {
    // As torch.cuda.graph does it: what is cached for other streams cannot be used by the capture's own pool.
    c10::cuda::device_synchronize();
    caching::emptyCache();
    const std::int64_t before = reserved_bytes(index_);
    {
      const c10::cuda::CUDAStreamGuard on_stream(stream);
      graph_.record(work);
    }
    pool_bytes_ = std::max<std::int64_t>(0, reserved_bytes(index_) - before);
  }

  void replay() override {
    const c10::cuda::CUDAGuard device(index_);
    graph_.replay();
  }
  std::int64_t pool_bytes() const override { return pool_bytes_; }

 private:
  const c10::DeviceIndex index_;
  std::int64_t pool_bytes_ = 0;
  Graph graph_;
};

}  // namespace

std::unique_ptr<CapturedWork> capture_graph(const c10::cuda::CUDAStream& stream, const std::function<void()>& work) {
  TORCH_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
              "device: a capture within a capture");
  auto captured = std::make_unique<CapturedGraph>(stream.device_index());
  captured->record(stream, work);
  // The generator's seed and offset, which a replay writes again, were written on this stream.
  put_after(c10::cuda::getCurrentCUDAStream(stream.device_index()), stream);
  return captured;
}

}  // namespace headrace
