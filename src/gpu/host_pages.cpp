#include "gpu/host_pages.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace {
namespace {

std::atomic<c10::DeviceIndex> lock_device{0};
// The process is ending, or is a forked child: CUDA is not called any more. In a child nothing is read by a device, and
// in a process that is ending nobody looks at what was.
std::atomic<bool> is_over{false};

thread_local bool reads_are_done = false;

// What CUDA says to `call`. From threads that can do nothing with an error. Another thread may capture a graph in
// torch's mode "global", which would break at some of the calls unless this thread's mode is "relaxed".
template <class Call>
cudaError_t said_to(const Call& call) noexcept {
  if (is_over.load()) return cudaErrorCudartUnloading;
  cudaError_t status = cudaErrorUnknown;
  try {
    const c10::cuda::CUDAGuard device(lock_device.load());
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    status = call();
  } catch (const std::exception&) {
    status = cudaErrorUnknown;
  }
  if (status != cudaSuccess) (void)cudaGetLastError();  // Or the next check of another call would find it.
  return status;
}

bool lock_pages(void* memory, std::size_t bytes) {
  return said_to([=] { return cudaHostRegister(memory, bytes, cudaHostRegisterPortable); }) == cudaSuccess;
}

void unlock_pages(void* memory) {
  (void)said_to([=] { return cudaHostUnregister(memory); });
}

// ---- Events ----

// Those that are not in use: making one takes as long as several records. Never destroyed: CUDA may have ended before.
class IdleEvents {
 public:
  // Null: there is none, and none can be made. Of the current device.
  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        const cudaEvent_t event = idle_.back();
        idle_.pop_back();
        return event;
      }
      idle_.reserve(made_ + 1);  // Now, so that put_back() never allocates.
      ++made_;
    }
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess) return event;
    return nullptr;
  }

  void put_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(event);
  }

 private:
  std::mutex mutex_;  // Guards what follows.
  std::vector<cudaEvent_t> idle_;
  std::size_t made_ = 0;
};

IdleEvents& idle_events() {
  static IdleEvents& events = *new IdleEvents;
  return events;
}

// Recorded while it is captured, an event would be one of the graph's; nor does it tell when the graph is replayed.
cudaError_t record_end(PageMark& mark) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(lock_device.load()).stream();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t status = cudaStreamIsCapturing(stream, &capture); status != cudaSuccess) return status;
  if (capture != cudaStreamCaptureStatusNone) return cudaSuccess;
  const cudaEvent_t event = idle_events().take();
  if (event == nullptr) return cudaErrorMemoryAllocation;
  if (const cudaError_t status = cudaEventRecord(event, stream); status != cudaSuccess) {
    idle_events().put_back(event);
    return status;
  }
  mark = {PageMark::Reads::queued, event};
  return cudaSuccess;
}

PageMark mark_reads() {
  if (reads_are_done || is_over.load()) return {};
  PageMark mark{PageMark::Reads::unknown, nullptr};
  (void)said_to([&mark] { return record_end(mark); });  // After an error it stays unknown.
  return mark;
}

// After an error other than "not ready" the context is gone, and with it all that was queued.
bool has_passed(void* end) {
  const auto event = static_cast<cudaEvent_t>(end);
  if (said_to([event] { return cudaEventQuery(event); }) == cudaErrorNotReady) return false;
  idle_events().put_back(event);
  return true;
}

void wait_for(void* end) {
  const auto event = static_cast<cudaEvent_t>(end);
  (void)said_to([event] { return cudaEventSynchronize(event); });
  idle_events().put_back(event);
}

void end_calls() {
  is_over = true;
}

}  // namespace

PageLock cuda_page_lock(c10::DeviceIndex index) {
  static const bool is_told_of_the_end = [index] {
    lock_device = index;
    // It runs before CUDA's own end: what is registered later runs earlier.
    return std::atexit(end_calls) == 0 && pthread_atfork(nullptr, nullptr, end_calls) == 0;
  }();
  TORCH_CHECK(is_told_of_the_end,
              "device: no function can be registered for the end of the process or for its children");
  return {lock_pages, unlock_pages, mark_reads, has_passed, wait_for};
}

ReadsAreDone::ReadsAreDone() : before_(std::exchange(reads_are_done, true)) {}
ReadsAreDone::~ReadsAreDone() {
  reads_are_done = before_;
}

}  // namespace headrace
