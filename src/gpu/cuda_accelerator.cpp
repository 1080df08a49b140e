#include "gpu/cuda_accelerator.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

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

class CudaMoment final : public DeviceMoment {
 public:
  explicit CudaMoment(const c10::cuda::CUDAStream& stream) { event_.record(stream); }

  bool is_passed() const override { return event_.query(); }
  void wait() const override { event_.synchronize(); }
  double seconds_since(const DeviceMoment& earlier) const override {
    return static_cast<const CudaMoment&>(earlier).event_.elapsed_time(event_) / 1000.0;
  }

 private:
  c10::cuda::CUDAEvent event_{static_cast<unsigned int>(cudaEventDefault)};  // Which keeps its time.
};

namespace caching = c10::CachingDeviceAllocator;

DeviceMemory::Pool pool_of(const caching::DeviceStats& stats, caching::StatType type) {
  const auto bytes = [place = static_cast<std::size_t>(type)](const caching::StatArray& stat) -> DeviceMemory::Bytes {
    return {stat[place].current, stat[place].peak};
  };
  return {.allocated = bytes(stats.allocated_bytes),
          .requested = bytes(stats.requested_bytes),
          .active = bytes(stats.active_bytes),
          .inactive_split = bytes(stats.inactive_split_bytes),
          .reserved = bytes(stats.reserved_bytes)};
}

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

  std::unique_ptr<DeviceMoment> moment() override {
    const c10::cuda::CUDAGuard device(index_);
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return nullptr;
    return std::make_unique<CudaMoment>(c10::cuda::getCurrentCUDAStream(index_));
  }

  std::optional<DeviceMemory> memory() const override {
    const caching::DeviceStats stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index_);
    return DeviceMemory{.all = pool_of(stats, caching::StatType::AGGREGATE),
                        .small = pool_of(stats, caching::StatType::SMALL_POOL),
                        .large = pool_of(stats, caching::StatType::LARGE_POOL),
                        .retries = stats.num_alloc_retries,
                        .out_of_memory = stats.num_ooms};
  }

  void reset_peak_memory() override { c10::cuda::CUDACachingAllocator::resetPeakStats(index_); }

  void release_cache() override {
    const c10::cuda::CUDAGuard device(index_);
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  std::string memory_snapshot() const override { return torch::cuda::_memory_snapshot_pickled(); }

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
