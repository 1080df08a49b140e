#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <headrace/facade/hardware.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/child_threads.h"
#include "core/hardware/machine.h"
#include "core/hardware/nvml.h"
#include "torch/device/accelerator.h"
#include "torch/tensor/compute.h"

namespace headrace::facade {

struct HardwareSettings::Changes {
  std::vector<Applied> settings{};
  std::vector<std::function<void()>> ways_back{};

  void add(Applied setting, std::function<void()> way_back = nullptr) {
    settings.push_back(std::move(setting));
    if (way_back) ways_back.push_back(std::move(way_back));
  }
};

namespace {

using Changes = HardwareSettings::Changes;

constexpr std::int64_t kThreadsMax = 1024, kMaxSplitMb = 128, kMb = 1 << 20;
constexpr int kTf32Since = 8;  // Compute capability, its major number.
constexpr const char* kUnavailable = "unavailable";
constexpr const char* kNone = "none";

const char* text_of(bool on) {
  return on ? "true" : "false";
}

std::string joined(const std::string& first, const std::string& second) {
  if (first.empty() || second.empty()) return first + second;
  return first + "; " + second;
}

// ---- CUDA ----

struct Flag {
  const char* key;
  bool wanted;
  bool (at::Context::*read)() const;
  void (at::Context::*write)(bool);
};

void add_flag(Changes& changes, const Flag& flag) {
  at::Context& context = at::globalContext();
  const bool before = (context.*flag.read)();
  (context.*flag.write)(flag.wanted);
  changes.add({flag.key, text_of(flag.wanted), text_of((context.*flag.read)()), ""},
              [write = flag.write, before] { (at::globalContext().*write)(before); });
}

void add_cudnn_flags(Changes& changes) {
  add_flag(changes,
           {"cudnn_deterministic", false, &at::Context::deterministicCuDNN, &at::Context::setDeterministicCuDNN});
  add_flag(changes, {"cudnn_benchmark", true, &at::Context::benchmarkCuDNN, &at::Context::setBenchmarkCuDNN});
}

void add_tf32_of_cudnn(Changes& changes) {
  at::Context& context = at::globalContext();
  const bool before = context.allowTF32CuDNN();
  context.setAllowTF32CuDNN(true);
  changes.add({"tf32_cudnn", "true", text_of(context.allowTF32CuDNN()), ""},
              [before] { at::globalContext().setAllowTF32CuDNN(before); });
}

// Settings as PYTORCH_CUDA_ALLOC_CONF has them: LibTorch takes those that a text leaves out for their defaults.
std::string with_max_split_size(std::string settings) {
  constexpr std::string_view kKey = "max_split_size_mb:";
  if (const std::size_t begin = settings.find(kKey); begin != std::string::npos) {
    const std::size_t comma = settings.find(',', begin);
    settings.erase(begin, comma == std::string::npos ? comma : comma + 1 - begin);
  }
  if (!settings.empty() && settings.back() != ',') settings += ',';
  return fmt::format("{}{}{}", settings, kKey, kMaxSplitMb);
}

void add_max_split_size(Changes& changes) {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  const std::string before = c10::CachingAllocator::getAllocatorSettings();
  c10::CachingAllocator::setAllocatorSettings(with_max_split_size(before));
  const auto found = static_cast<std::int64_t>(AcceleratorAllocatorConfig::max_split_size());
  changes.add({"max_split_size_mb", std::to_string(kMaxSplitMb), std::to_string(found / kMb),
               "blocks that were split before stay so"},
              [before] { c10::CachingAllocator::setAllocatorSettings(before); });
}

void add_emptied_cache(Changes& changes, Accelerator& cuda) {
  const auto reserved = [&cuda]() -> std::int64_t {
    const std::optional<DeviceMemory> memory = cuda.memory();
    return memory ? memory->all.reserved.now : 0;
  };
  const std::int64_t before = reserved();
  cuda.release_cache();
  changes.add({"empty_cache", "true", "true", fmt::format("{} bytes given back", before - reserved())});
}

// nullptr, where each of these has the reason: there is no CUDA.
Accelerator* cuda_or_why_not(Changes& changes, std::initializer_list<std::pair<const char*, const char*>> requested) {
  std::string reason;
  Accelerator* const cuda = accelerator_of(at::Device(at::kCUDA, 0), reason);
  if (cuda != nullptr) return cuda;
  for (const auto& [key, wanted] : requested) {
    changes.add({key, wanted, kUnavailable, fmt::format("not applied: wanted CUDA, found none: {}", reason)});
  }
  return nullptr;
}

// ---- The table by the GPU ----

constexpr GpuOptimizationConfig kLarge{1.5, true, 16}, kSmall{1.0, true, 8};
struct NamedRow {
  std::array<std::string_view, 2> names;
  GpuOptimizationConfig config;
};
constexpr std::array kByName{NamedRow{{"RTX 4090", "RTX 4080"}, kLarge},
                             NamedRow{{"RTX 3090", "RTX 3080"}, {1.2, true, 12}},
                             NamedRow{{"RTX 3070", "RTX 3060"}, kSmall}};
// From 7.0 on there are tensor cores.
struct CapabilityRow {
  int capability_min;
  std::int64_t memory_min;
  GpuOptimizationConfig config;
};
constexpr std::array kByCapability{CapabilityRow{8, 40'000'000'000, kLarge}, CapabilityRow{7, 14'000'000'000, kSmall}};

}  // namespace

HardwareSettings::HardwareSettings(std::unique_ptr<Changes> changes) : changes_(std::move(changes)) {}
HardwareSettings::~HardwareSettings() = default;
HardwareSettings::HardwareSettings(HardwareSettings&& other) noexcept = default;
HardwareSettings& HardwareSettings::operator=(HardwareSettings&& other) noexcept = default;

const std::vector<Applied>& HardwareSettings::settings() const {
  return changes_->settings;
}

const Applied& HardwareSettings::operator[](std::string_view key) const {
  std::string keys;
  for (const Applied& setting : settings()) {
    if (setting.key == key) return setting;
    keys += fmt::format("{}{}", keys.empty() ? "" : ", ", setting.key);
  }
  fail(ErrorCode::invalid_argument, "facade: hardware settings: wanted one of {}, found '{}'", keys, key);
}

void HardwareSettings::undo() {
  std::vector<std::function<void()>> ways_back = std::exchange(changes_->ways_back, {});
  while (!ways_back.empty()) {
    ways_back.back()();
    ways_back.pop_back();
  }
}

HardwareSettings optimize_cpu_settings() {
  auto changes = std::make_unique<Changes>();
  const Machine machine = detect_machine();
  const std::int64_t usable = std::min<std::int64_t>(machine.cores_usable, kThreadsMax);
  const std::int64_t online = machine.cores_online > 0 ? machine.cores_online : usable;
  const std::string fewer =
      usable == online ? "" : fmt::format("this process may use {} of the machine's {} cores", usable, online);

  const std::int64_t threads_before = compute_threads();
  const Applied threads = apply_compute_threads(usable);
  changes->add({"compute_threads", std::to_string(online), threads.applied, joined(fewer, threads.reason)},
               [threads_before] { apply_compute_threads(threads_before); });
  auto children = std::make_shared<HardwareChange>(set_child_threads(usable));  // Of the way back, which is copied.
  const HardwareSetting& setting = children->setting();
  changes->add({"child_threads", std::to_string(online), setting.now,
                joined(fewer, joined(to_string(setting.how), setting.reason))},
               [children] { children->undo(); });
  return HardwareSettings(std::move(changes));
}

HardwareSettings optimize_cuda_settings() {
  auto changes = std::make_unique<Changes>();
  Accelerator* const cuda = cuda_or_why_not(*changes, {{"memory_fraction", "0.9"},
                                                       {"cudnn_deterministic", "false"},
                                                       {"cudnn_benchmark", "true"},
                                                       {"tf32_cudnn", "true"},
                                                       {"max_split_size_mb", "128"},
                                                       {"empty_cache", "true"}});
  if (cuda != nullptr) {
    changes->add({"memory_fraction", "0.9", kNone,
                  "not applied: LibTorch has its call in its CUDA library alone, which this engine does not link"});
    add_cudnn_flags(*changes);
    add_tf32_of_cudnn(*changes);
    add_max_split_size(*changes);
    add_emptied_cache(*changes, *cuda);
  }
  return HardwareSettings(std::move(changes));
}

HardwareSettings optimize_gpu() {
  auto changes = std::make_unique<Changes>();
  Accelerator* const cuda = cuda_or_why_not(*changes, {{"power_mode", "high"},
                                                       {"tf32_matmul", "true"},
                                                       {"tf32_cudnn", "true"},
                                                       {"cudnn_deterministic", "false"},
                                                       {"cudnn_benchmark", "true"}});
  if (cuda == nullptr) return HardwareSettings(std::move(changes));
  changes->add(
      {"power_mode", "high", kNone, "not applied: the Python package sets a power limit, where it is permitted"});
  const std::optional<GpuIdentity> gpu = Nvml().first_device();
  if (gpu && gpu->capability_major > 0 && gpu->capability_major < kTf32Since) {
    const std::string reason = fmt::format("not applied: compute capability {}.{} has no TF32; 8.0 and later have",
                                           gpu->capability_major, gpu->capability_minor);
    for (const char* key : {"tf32_matmul", "tf32_cudnn"}) changes->add({key, "true", kNone, reason});
  } else {
    add_flag(*changes, {"tf32_matmul", true, &at::Context::allowTF32CuBLAS, &at::Context::setAllowTF32CuBLAS});
    add_tf32_of_cudnn(*changes);
  }
  add_cudnn_flags(*changes);
  return HardwareSettings(std::move(changes));
}

GpuOptimizationConfig gpu_optimization_config(const GpuDescription& gpu, bool literal) {
  for (const NamedRow& row : kByName) {
    for (const std::string_view name : row.names) {
      if (gpu.name.find(name) != std::string::npos) return row.config;
    }
  }
  for (const CapabilityRow& row : kByCapability) {
    if (!literal && gpu.capability_major >= row.capability_min && gpu.memory >= row.memory_min) return row.config;
  }
  return {};
}

std::optional<GpuOptimizationConfig> get_gpu_optimization_config(bool literal) {
  std::string reason;
  if (accelerator_of(at::Device(at::kCUDA, 0), reason) == nullptr) return std::nullopt;
  GpuDescription gpu;
  if (const std::optional<GpuIdentity> found = Nvml().first_device()) {
    gpu = {found->name, found->capability_major, found->capability_minor, found->memory_total.value_or(0)};
  }
  return gpu_optimization_config(gpu, literal);
}

}  // namespace headrace::facade
