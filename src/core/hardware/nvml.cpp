#include "core/hardware/nvml.h"

#include <fmt/format.h>

#include <dlfcn.h>

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

std::optional<GpuIdentity> identity_of(const NvmlTable& nvml, void* device) {
  char name[96] = {};
  if (nvml.device_name(device, name, sizeof name) != 0) return std::nullopt;
  GpuIdentity identity{.name = name, .memory_total = std::nullopt};
  std::uint64_t memory[3] = {};
  if (nvml.device_memory(device, memory) == 0) identity.memory_total = static_cast<std::int64_t>(memory[0]);
  int major = 0, minor = 0;
  if (nvml.device_capability(device, &major, &minor) == 0) {
    identity.capability_major = major;
    identity.capability_minor = minor;
  }
  return identity;
}

GpuFigures figures_of(const NvmlTable& nvml, void* device) {
  GpuFigures figures;
  unsigned use[2] = {};
  if (nvml.device_use != nullptr && nvml.device_use(device, use) == 0) figures.utilization = use[0] / 100.0;
  std::uint64_t memory[3] = {};
  if (nvml.device_memory(device, memory) == 0) {
    figures.memory_total = static_cast<std::int64_t>(memory[0]);
    figures.memory_used = static_cast<std::int64_t>(memory[2]);
  }
  unsigned number = 0;
  if (nvml.device_power != nullptr && nvml.device_power(device, &number) == 0) figures.power_watts = number / 1000.0;
  if (nvml.device_temperature != nullptr && nvml.device_temperature(device, 0, &number) == 0) {
    figures.temperature_celsius = number;
  }
  if (nvml.device_clock != nullptr && nvml.device_clock(device, 1, &number) == 0) figures.clock_hertz = number * 1e6;
  if (nvml.device_clock != nullptr && nvml.device_clock(device, 2, &number) == 0) {
    figures.memory_clock_hertz = number * 1e6;
  }
  return figures;
}

}  // namespace

Nvml::Nvml(const NvmlTable& table) : table_(table) {
  initialise();
}

Nvml::Nvml(const std::string& library) : handle_(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    reason_ = fmt::format("no NVML ({})", library);
    return;
  }
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle_, name));
    return function != nullptr;
  };
  const auto need = [&](auto& function, const char* name) {
    if (!find(function, name)) missing = name;
  };
  need(table_.init, "nvmlInit_v2");
  need(table_.shutdown, "nvmlShutdown");
  need(table_.error_text, "nvmlErrorString");
  need(table_.device_count, "nvmlDeviceGetCount_v2");
  need(table_.device_at, "nvmlDeviceGetHandleByIndex_v2");
  need(table_.device_name, "nvmlDeviceGetName");
  need(table_.device_memory, "nvmlDeviceGetMemoryInfo");
  need(table_.device_capability, "nvmlDeviceGetCudaComputeCapability");
  need(table_.driver_version, "nvmlSystemGetDriverVersion");
  find(table_.device_use, "nvmlDeviceGetUtilizationRates");
  find(table_.device_power, "nvmlDeviceGetPowerUsage");
  find(table_.device_temperature, "nvmlDeviceGetTemperature");
  find(table_.device_clock, "nvmlDeviceGetClockInfo");
  if (missing != nullptr) {
    reason_ = fmt::format("{} has no {}", library, missing);
    return;
  }
  initialise();
}

void Nvml::initialise() {
  if (const int error = table_.init()) reason_ = table_.error_text(error);
}

Nvml::~Nvml() {
  if (reason_.empty()) table_.shutdown();
  if (handle_ != nullptr) ::dlclose(handle_);
}

std::string Nvml::description() const {
  return reason_.empty() ? describe_first_device(table_) : unavailable(reason_);
}

std::optional<GpuIdentity> Nvml::first_device() const {
  unsigned count = 0;
  void* device = nullptr;
  const bool is_there =
      reason_.empty() && table_.device_count(&count) == 0 && count > 0 && table_.device_at(0, &device) == 0;
  return is_there ? identity_of(table_, device) : std::nullopt;
}

std::string Nvml::why_not() const {
  if (!reason_.empty()) return unavailable(reason_);
  unsigned count = 0;
  if (const int error = table_.device_count(&count)) return unavailable(table_.error_text(error));
  return count == 0 ? unavailable("no GPU") : "";
}

std::vector<GpuFigures> Nvml::figures() const {
  std::vector<GpuFigures> result;
  unsigned count = 0;
  if (!reason_.empty() || table_.device_count(&count) != 0) return result;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    result.push_back(table_.device_at(i, &device) == 0 ? figures_of(table_, device) : GpuFigures{});
  }
  return result;
}

std::string describe_gpu(const NvmlTable& nvml) {
  return Nvml(nvml).description();
}

std::string describe_gpu(const std::string& library) {
  return Nvml(library).description();
}

}  // namespace headrace
