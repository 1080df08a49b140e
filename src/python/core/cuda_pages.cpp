#include "python/core/cuda_pages.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <mutex>

#include "core/memory/page_lock.h"

namespace headrace::python {
namespace {

// As <cuda_runtime_api.h> of CUDA 11 to 13 has them; core is built without it.
using Status = int;
constexpr Status kSuccess = 0, kUnloading = 4, kNotReady = 600;
constexpr unsigned kHostRegisterPortable = 1, kEventDisableTiming = 2;
constexpr int kCaptureModeRelaxed = 2, kNotCapturing = 0;

struct Runtime {
  Status (*host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  Status (*host_unregister)(void* memory) = nullptr;
  Status (*event_create)(void** event, unsigned flags) = nullptr;
  Status (*event_destroy)(void* event) = nullptr;
  Status (*event_record)(void* event, void* stream) = nullptr;
  Status (*event_query)(void* event) = nullptr;
  Status (*event_synchronize)(void* event) = nullptr;
  Status (*stream_is_capturing)(void* stream, int* capture) = nullptr;
  Status (*exchange_capture_mode)(int* mode) = nullptr;
  Status (*get_device)(int* device) = nullptr;
  Status (*set_device)(int device) = nullptr;
  Status (*get_last_error)() = nullptr;
  const char* (*error_string)(Status status) = nullptr;
  std::int32_t (*current_stream)(std::int32_t device, void** stream) = nullptr;  // torch's own, not 0 after an error.
};

// Both are set once, before the page lock that reads them is installed.
Runtime runtime;
std::int32_t lock_device = 0;
// The process is ending, or is a forked child: nothing of CUDA is called any more.
std::atomic<bool> is_over{false};

std::atomic<std::int64_t> asked{0}, refused{0};
std::atomic<Status> last_refusal{kSuccess};

// The calling thread's device and capture mode, which are put back. Without it a thread that has called no CUDA yet
// would make a context on device 0, and a call would end a capture of another thread in torch's mode "global".
class ForTheDevice {
 public:
  ForTheDevice() {
    (void)runtime.get_device(&device_);
    if (device_ != lock_device) (void)runtime.set_device(lock_device);
    (void)runtime.exchange_capture_mode(&mode_);
  }
  ~ForTheDevice() {
    (void)runtime.exchange_capture_mode(&mode_);
    if (device_ != lock_device) (void)runtime.set_device(device_);
  }
  ForTheDevice(const ForTheDevice&) = delete;
  ForTheDevice& operator=(const ForTheDevice&) = delete;

 private:
  int device_ = lock_device;
  int mode_ = kCaptureModeRelaxed;
};

// What CUDA says to `call`.
template <class Call>
Status said_to(const Call& call) noexcept {
  if (is_over.load()) return kUnloading;
  const ForTheDevice there;
  const Status status = call();
  if (status != kSuccess) (void)runtime.get_last_error();  // Or the next check of another call would find it.
  return status;
}

bool lock_pages(void* memory, std::size_t bytes) {
  const Status status = said_to([=] { return runtime.host_register(memory, bytes, kHostRegisterPortable); });
  ++asked;
  if (status == kSuccess) return true;
  last_refusal = status;
  ++refused;
  return false;
}

void unlock_pages(void* memory) {
  (void)said_to([=] { return runtime.host_unregister(memory); });
}

// A stream that is captured is not recorded on: the event would be one of the graph's, and a replay reads again. The
// mark then stays as it is, as it does after an error.
Status record_end(PageMark& mark) {
  void* stream = nullptr;
  int capture = kNotCapturing;
  if (runtime.current_stream(lock_device, &stream) != 0) return kSuccess;
  if (const Status status = runtime.stream_is_capturing(stream, &capture); status != kSuccess) return status;
  if (capture != kNotCapturing) return kSuccess;
  void* event = nullptr;
  if (const Status status = runtime.event_create(&event, kEventDisableTiming); status != kSuccess) return status;
  if (const Status status = runtime.event_record(event, stream); status != kSuccess) {
    (void)runtime.event_destroy(event);
    return status;
  }
  mark = {PageMark::Reads::queued, event};
  return kSuccess;
}

PageMark mark_reads() {
  if (is_over.load()) return {};
  PageMark mark{PageMark::Reads::unknown, nullptr};
  (void)said_to([&mark] { return record_end(mark); });
  return mark;
}

// After an error other than "not ready" the context is gone, and with it all that was queued.
bool has_passed(void* end) {
  if (said_to([end] { return runtime.event_query(end); }) == kNotReady) return false;
  (void)said_to([end] { return runtime.event_destroy(end); });
  return true;
}

void wait_for(void* end) {
  (void)said_to([end] { return runtime.event_synchronize(end); });
  (void)said_to([end] { return runtime.event_destroy(end); });
}

void end_calls() {
  is_over = true;
}

// Looks in `library` and in what that needs.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }  // The first of them.

 private:
  void* library_;
  std::string missing_;
};

std::string find_runtime(void* library, Runtime& found) {
  Symbols symbols(library);
  symbols.find("cudaHostRegister", found.host_register);
  symbols.find("cudaHostUnregister", found.host_unregister);
  symbols.find("cudaEventCreateWithFlags", found.event_create);
  symbols.find("cudaEventDestroy", found.event_destroy);
  symbols.find("cudaEventRecord", found.event_record);
  symbols.find("cudaEventQuery", found.event_query);
  symbols.find("cudaEventSynchronize", found.event_synchronize);
  symbols.find("cudaStreamIsCapturing", found.stream_is_capturing);
  symbols.find("cudaThreadExchangeStreamCaptureMode", found.exchange_capture_mode);
  symbols.find("cudaGetDevice", found.get_device);
  symbols.find("cudaSetDevice", found.set_device);
  symbols.find("cudaGetLastError", found.get_last_error);
  symbols.find("cudaGetErrorString", found.error_string);
  symbols.find("aoti_torch_get_current_cuda_stream", found.current_stream);
  return symbols.missing();
}

// What was opened stays so until the process ends. "": `runtime` is whole.
std::string open_runtime(const std::string& library, std::int32_t device) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (opened == nullptr) return fmt::format("torch has not loaded {}", library);
  Runtime found;
  if (const std::string missing = find_runtime(opened, found); !missing.empty()) {
    return fmt::format("{} has no {}", library, missing);
  }
  // It runs before CUDA's own end: what is registered later runs earlier.
  if (std::atexit(end_calls) != 0 || pthread_atfork(nullptr, nullptr, end_calls) != 0) {
    return "no function can be registered for the end of the process or for its children";
  }
  runtime = found;
  lock_device = device;
  return "";
}

std::string words_of(Status status) {
  if (status == kUnloading) return "CUDA is not called in a forked process, nor at the end of one";
  return runtime.error_string(status);
}

}  // namespace

std::string lock_pages_by(const std::string& library, std::int32_t device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (installed_page_lock().lock != nullptr) return "";
  if (runtime.host_register == nullptr) {
    if (std::string reason = open_runtime(library, device); !reason.empty()) return reason;
  }
  install_page_lock({lock_pages, unlock_pages, mark_reads, has_passed, wait_for});
  return "";
}

PageLocking page_locking() {
  PageLocking told;
  told.is_installed = installed_page_lock().lock != nullptr;
  told.asked = asked.load();
  told.refused = refused.load();
  if (const Status status = last_refusal.load(); status != kSuccess) told.last_refusal = words_of(status);
  return told;
}

}  // namespace headrace::python
