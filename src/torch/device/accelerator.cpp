#include "torch/device/accelerator.h"

#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/memory/page_lock.h"
#include "torch/device/gpu_plugin.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlugin = "libheadrace_gpu.so";

std::atomic<bool> cpu_captures{false};

class KeptWork final : public CapturedWork {
 public:
  explicit KeptWork(std::function<void()> work) : work_(std::move(work)) { work_(); }
  void replay() override {
    if (!std::exchange(is_done_, false)) work_();
  }
  std::int64_t pool_bytes() const override { return 0; }

 private:
  const std::function<void()> work_;
  bool is_done_ = true;  // By the capture, in the place of the first replay.
};

class CopyInPlace final : public BatchTransfer {
 public:
  void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) override {
    HEADRACE_CHECK(from.size() == to.size(), "{} tensors for {} places", from.size(), to.size());
    const c10::NoGradGuard no_graph;
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
};

class ReadyCopy final : public HostCopy {
 public:
  explicit ReadyCopy(const at::Tensor& values) : values_(values.detach().clone()) {}
  const at::Tensor& values() override { return values_; }

 private:
  const at::Tensor values_;
};

// The device is there already.
class HostMoment final : public DeviceMoment {
 public:
  bool is_passed() const override { return true; }
  void wait() const override {}
  double seconds_since(const DeviceMoment& earlier) const override {
    return static_cast<double>(ns_ - static_cast<const HostMoment&>(earlier).ns_) / 1e9;
  }

 private:
  const std::int64_t ns_ = monotonic_ns();
};

// It runs what it is told at once: there is nothing to queue and nothing to wait for.
class CpuAccelerator final : public Accelerator {
 public:
  bool captures() const override { return cpu_captures; }
  void run_aside(const std::function<void()>& work) override { work(); }

  std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) override {
    if (!captures()) fail(ErrorCode::unsupported, "device: a CPU captures nothing; wanted a CUDA device");
    return std::make_unique<KeptWork>(work);
  }

  std::unique_ptr<BatchTransfer> batch_transfer() override { return std::make_unique<CopyInPlace>(); }
  std::unique_ptr<HostCopy> copy_to_host(const at::Tensor& values) override {
    return std::make_unique<ReadyCopy>(values);
  }

  void copy_elements(const at::Tensor& from, const at::Tensor& to, std::int64_t place) override {
    const c10::NoGradGuard no_graph;
    to.view(-1).narrow(0, place, from.numel()).copy_(from.view(-1));
  }

  std::unique_ptr<DeviceMoment> moment() override { return std::make_unique<HostMoment>(); }

  std::optional<DeviceMemory> memory() const override { return std::nullopt; }
  void reset_peak_memory() override {}
  void release_cache() override {}
  std::string memory_snapshot() const override {
    fail(ErrorCode::unsupported, "device: memory snapshot: wanted a CUDA device, found the CPU");
  }
};

// The file of this library, or of the test program that its objects are linked into.
fs::path own_file() {
  static const char anchor = 0;
  Dl_info info{};
  HEADRACE_CHECK(::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr,
                 "device: the loader does not know this library");
  std::error_code error;
  const fs::path own = fs::canonical(info.dli_fname, error);
  return error ? fs::path(info.dli_fname) : own;
}

// An installed plugin names no folder of torch's: CUDA's half of LibTorch is opened from where this process has the
// other. Where it cannot be opened, the plugin cannot either, and says why. Under Python it is there already.
void open_cuda_of_torch() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&c10::DeviceTypeName), &info) == 0 || info.dli_fname == nullptr) return;
  ::dlopen((fs::path(info.dli_fname).parent_path() / "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

// nullptr: for that reason. What was opened stays so until the process ends.
decltype(&headrace_gpu_accelerator) open_plugin(std::string& reason) {
  const fs::path own = own_file(), path = own.parent_path() / kPlugin;
  std::error_code ignored;  // Of a file that cannot be looked at dlopen says why.
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    reason = fmt::format("{} is not beside {}", kPlugin, own.filename().string());
    return nullptr;
  }
  open_cuda_of_torch();
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reason = fmt::format("{} cannot be opened: {}", kPlugin, ::dlerror());
    return nullptr;
  }
  void* const symbol = ::dlsym(library, "headrace_gpu_accelerator");
  if (symbol == nullptr) reason = fmt::format("{} is of another version: {}", kPlugin, ::dlerror());
  return reinterpret_cast<decltype(&headrace_gpu_accelerator)>(symbol);
}

Accelerator* cuda_accelerator(int index, std::string& reason) {
  // Guards what follows, and the plugin's own list, against the rule never to call out with a lock held: nothing of it
  // comes back here.
  static std::mutex mutex;
  static decltype(&headrace_gpu_accelerator) find = nullptr;
  static bool locks_pages = false;
  const std::lock_guard lock(mutex);
  if (find == nullptr) find = open_plugin(reason);
  if (find == nullptr) return nullptr;
  PageLock page_lock;
  Accelerator* const found = find(HEADRACE_GPU_VERSION, index, &reason, &page_lock);
  if (found != nullptr && !locks_pages) {
    install_page_lock(page_lock);
    locks_pages = true;
  }
  return found;
}

}  // namespace

Accelerator* accelerator_of(c10::Device device, std::string& reason) {
  if (device.is_cuda()) return cuda_accelerator(device.index(), reason);
  if (device.is_cpu()) {
    static Accelerator& cpu = *new CpuAccelerator;  // Never destroyed, as those of the plugin.
    return &cpu;
  }
  reason = fmt::format("the engine has CUDA and the CPU, found {}", c10::DeviceTypeName(device.type(), true));
  return nullptr;
}

void let_cpu_capture(bool captures) {
  cpu_captures = captures;
}

}  // namespace headrace
