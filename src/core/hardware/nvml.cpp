#include "core/hardware/nvml.h"

#include <fmt/format.h>

#include <dlfcn.h>

#include <cstdint>
#include <type_traits>

namespace headrace {
namespace {

std::string unavailable(const std::string& reason) {
  return "unavailable: " + reason;
}

std::string describe_first_device(const NvmlTable& nvml) {
  unsigned count = 0;
  if (const int error = nvml.device_count(&count)) return unavailable(nvml.error_text(error));
  if (count == 0) return unavailable("no GPU");
  void* device = nullptr;
  if (const int error = nvml.device_at(0, &device)) return unavailable(nvml.error_text(error));
  char name[96] = {};
  if (const int error = nvml.device_name(device, name, sizeof name)) return unavailable(nvml.error_text(error));

  // What the driver does not tell is left out.
  std::string text = name;
  std::uint64_t memory[3] = {};
  if (nvml.device_memory(device, memory) == 0) {
    text += fmt::format(", {:.1f} GiB", static_cast<double>(memory[0]) / (1 << 30));
  }
  int major = 0, minor = 0;
  if (nvml.device_capability(device, &major, &minor) == 0) {
    text += fmt::format(", compute capability {}.{}", major, minor);
  }
  char driver[80] = {};
  if (nvml.driver_version(driver, sizeof driver) == 0) text += fmt::format(", driver {}", driver);
  if (count > 1) text += fmt::format("; the first of {}", count);
  return text;
}

}  // namespace

std::string describe_gpu(const NvmlTable& nvml) {
  if (const int error = nvml.init()) return unavailable(nvml.error_text(error));
  const std::string text = describe_first_device(nvml);
  nvml.shutdown();
  return text;
}

std::string describe_gpu(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return unavailable(fmt::format("no NVML ({})", library));
  NvmlTable nvml{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  find(nvml.init, "nvmlInit_v2");
  find(nvml.shutdown, "nvmlShutdown");
  find(nvml.error_text, "nvmlErrorString");
  find(nvml.device_count, "nvmlDeviceGetCount_v2");
  find(nvml.device_at, "nvmlDeviceGetHandleByIndex_v2");
  find(nvml.device_name, "nvmlDeviceGetName");
  find(nvml.device_memory, "nvmlDeviceGetMemoryInfo");
  find(nvml.device_capability, "nvmlDeviceGetCudaComputeCapability");
  find(nvml.driver_version, "nvmlSystemGetDriverVersion");
  const std::string text =
      missing != nullptr ? unavailable(fmt::format("{} has no {}", library, missing)) : describe_gpu(nvml);
  ::dlclose(handle);
  return text;
}

}  // namespace headrace
