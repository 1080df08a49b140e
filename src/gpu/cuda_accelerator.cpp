#include "gpu/cuda_accelerator.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <exception>
#include <mutex>

#include "gpu/batch_transfer.h"
#include "gpu/captured_graph.h"
#include "gpu/stream_order.h"

namespace headrace {
namespace {

// To memory that is page-locked, or the copy would make the caller wait for all that is queued.
class PinnedCopy final : public HostCopy {
 public:
  PinnedCopy(const at::Tensor& values, c10::DeviceIndex index)
      : source_(values.detach()),
        values_(at::empty_like(source_, source_.options().device(at::kCPU).pinned_memory(true))) {
    const c10::NoGradGuard no_graph;
    values_.copy_(source_, /*non_blocking=*/true);
    copied_.record(c10::cuda::getCurrentCUDAStream(index));
  }

  const at::Tensor& values() override {
    copied_.synchronize();
    source_.reset();
    return values_;
  }

 private:
  at::Tensor source_;  // Until it is copied.
  const at::Tensor values_;
  c10::cuda::CUDAEvent copied_;
};

class CudaAccelerator final : public Accelerator {
 public:
  explicit CudaAccelerator(c10::DeviceIndex index)
      : index_(index), side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index)) {}

  bool captures() const override { return true; }

  void run_aside(const std::function<void()>& work) override {
    const std::lock_guard lock(mutex_);
    const c10::cuda::CUDAGuard device(index_);
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(index_);
    put_after(side_, current);
    std::exception_ptr thrown;
    try {
      const c10::cuda::CUDAStreamGuard on_side(side_);
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    put_after(current, side_);  // Also after what was queued before it threw.
    if (thrown != nullptr) std::rethrow_exception(thrown);
  }

  std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) override {
    const std::lock_guard lock(mutex_);
    const c10::cuda::CUDAGuard device(index_);
    return capture_graph(side_, work);
  }

  std::unique_ptr<BatchTransfer> batch_transfer() override { return cuda_batch_transfer(index_); }

  std::unique_ptr<HostCopy> copy_to_host(const at::Tensor& values) override {
    const c10::cuda::CUDAGuard device(index_);
    return std::make_unique<PinnedCopy>(values, index_);
  }

  void copy_elements(const at::Tensor& from, const at::Tensor& to, std::int64_t place) override {
    const c10::cuda::CUDAGuard device(index_);
    std::byte* const begin = static_cast<std::byte*>(to.mutable_data_ptr()) + place * to.element_size();
    C10_CUDA_CHECK(cudaMemcpyAsync(begin, from.const_data_ptr(), from.nbytes(), cudaMemcpyDeviceToDevice,
                                   c10::cuda::getCurrentCUDAStream(index_).stream()));
  }

 private:
  const c10::DeviceIndex index_;
  const c10::cuda::CUDAStream side_;
  std::recursive_mutex mutex_;  // One of several trainers has the stream; its work may have a trainer in it.
};

}  // namespace

std::unique_ptr<Accelerator> make_cuda_accelerator(c10::DeviceIndex index) {
  return std::make_unique<CudaAccelerator>(index);
}

}  // namespace headrace
