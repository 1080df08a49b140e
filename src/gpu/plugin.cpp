#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/page_lock.h"
#include "gpu/cuda_accelerator.h"
#include "gpu/host_pages.h"
#include "torch/device/accelerator.h"
#include "torch/device/gpu_plugin.h"

namespace headrace {
namespace {

// What stands behind the first line of an error of LibTorch's is for its developers.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Accelerator* find_accelerator(int wanted, std::string& reason, PageLock& page_lock) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    reason = "no CUDA device: ";
    reason += status != cudaSuccess ? cudaGetErrorString(status) : "the driver shows none";
    return nullptr;
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  const int index = wanted < 0 ? c10::cuda::current_device() : wanted;
  if (index >= count) {
    reason = "wanted CUDA device " + std::to_string(index) + ", found " + std::to_string(count) + " of them";
    return nullptr;
  }
  // Never destroyed: CUDA may have ended before the static objects do.
  static std::vector<std::unique_ptr<Accelerator>>& accelerators = *new std::vector<std::unique_ptr<Accelerator>>;
  if (accelerators.size() <= static_cast<std::size_t>(index)) accelerators.resize(static_cast<std::size_t>(index) + 1);
  std::unique_ptr<Accelerator>& accelerator = accelerators[static_cast<std::size_t>(index)];
  if (accelerator == nullptr) accelerator = make_cuda_accelerator(static_cast<c10::DeviceIndex>(index));
  page_lock = cuda_page_lock(static_cast<c10::DeviceIndex>(index));
  return accelerator.get();
}

}  // namespace
}  // namespace headrace

headrace::Accelerator* headrace_gpu_accelerator(const char* version, int index, std::string* reason,
                                                headrace::PageLock* page_lock) {
  if (std::string_view(version) != HEADRACE_GPU_VERSION) {
    *reason =
        std::string("libheadrace_gpu.so is of another build: wanted ") + version + ", found " HEADRACE_GPU_VERSION;
    return nullptr;
  }
  try {
    return headrace::find_accelerator(index, *reason, *page_lock);
  } catch (const c10::Error& error) {
    *reason = headrace::first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    *reason = headrace::first_line(error.what());
  }
  return nullptr;
}
