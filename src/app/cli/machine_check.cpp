// doctor: what of this machine makes measuring or training worse?
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/report.h>

#include <charconv>
#include <optional>
#include <string>

#include "app/cli/doctor.h"
#include "app/cli/environment.h"
#include "app/cli/torch_folder.h"
#include "core/base/files.h"
#include "core/hardware/memory_use.h"
#include "core/hardware/nvidia_devices.h"

namespace headrace {
namespace {

constexpr std::int64_t kMemoryWanted = 2LL << 30;  // Below, LibTorch and the Fashion-MNIST example hardly fit.

// The first line of a file of /proc or /sys, or empty: the system has no such file.
std::string system_line(const std::string& path) {
  try {
    const std::string text = read_file(path, 1 << 16);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";
  }
}

void look_at_cores(const Machine& machine, std::vector<Finding>& findings) {
  if (machine.cores_usable >= machine.cores_online) return;
  const std::string why = machine.cpu_quota ? fmt::format("the cgroup grants {:.2f} cores", *machine.cpu_quota)
                                            : std::string("the process may not run on the others");
  findings.push_back({"few_cores",
                      fmt::format("{} of {} cores are usable: {}", machine.cores_usable, machine.cores_online, why),
                      "Raise the quota or the affinity mask if the job may use the whole machine."});
}

void look_at_memory(const Machine& machine, std::vector<Finding>& findings) {
  if (!machine.memory_limit || *machine.memory_limit >= kMemoryWanted) return;
  findings.push_back({"low_memory",
                      fmt::format("{:.2f} GiB of memory may be used ({})",
                                  static_cast<double>(*machine.memory_limit) / (1LL << 30), machine.memory_limit_from),
                      "Raise the limit to 2 GiB or more, or lower data.batch_size."});
}

void look_at_huge_pages(const std::string& root, std::vector<Finding>& findings) {
  const std::string setting = system_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  if (setting.find("[never]") == std::string::npos) return;
  findings.push_back({"no_huge_pages", "transparent huge pages are off (" + setting + ")",
                      "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled lets large tensors use them."});
}

void look_at_governor(const std::string& root, std::vector<Finding>& findings) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu0/cpufreq/";
  const std::string governor = system_line(folder + "scaling_governor"),
                    driver = system_line(folder + "scaling_driver");
  // The pstate drivers call their ordinary, fast-reacting mode powersave.
  if (governor != "powersave" || driver.find("pstate") != std::string::npos) return;
  findings.push_back({"slow_clock", "the CPU's frequency governor is powersave (" + driver + ")",
                      "cpupower frequency-set -g performance makes the job faster and its timings steadier."});
}

void look_at_load(const Machine& machine, const std::string& root, std::vector<Finding>& findings) {
  const std::string line = system_line(root + "/proc/loadavg");
  double load = 0;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), load);
  // The load is the machine's, also in a container that may use few of its cores.
  if (error != std::errc{} || load <= machine.cores_online - 0.5 * machine.cores_usable) return;
  findings.push_back(
      {"busy",
       fmt::format("other work keeps {:.1f} of {} cores busy (load of the last minute)", load, machine.cores_online),
       "Timings scatter beside it: tune when the machine is idle."});
}

void look_at_variables(std::vector<Finding>& findings) {
  for (const auto& [name, value] : job_variables()) {
    // An installed copy wants it, and the verb says what is wrong with it.
    if (name == kTorchVariable || !debug_effect(name, value).empty()) continue;
    findings.push_back({"variable_set", fmt::format("{}={} is set from outside", name, without_credentials(value)),
                        "It changes how the job runs and is in no recipe; unset it unless it is meant."});
  }
}

void look_at_debug_variables(std::vector<Finding>& findings) {
  for (const auto& [name, value] : job_variables()) {
    if (const auto finding = debug_variable_finding(name, value)) findings.push_back(*finding);
  }
}

void look_at_memory_use(const std::string& root, std::vector<Finding>& findings) {
  const std::optional<MemoryUse> use = memory_use(root);
  if (!use || use->share <= kMemoryNearlyFull) return;
  findings.push_back(
      {"memory_in_use", fmt::format("{:.0f} % of the memory is in use ({})", 100 * use->share, use->of),
       "End what else holds memory, raise the limit, or take a smaller batch: at the limit the kernel ends "
       "the job without a word."});
}

// What NVML cannot tell: that there is a GPU all the same.
void look_at_gpu(const Machine& machine, const std::string& root, std::vector<Finding>& findings) {
  if (machine.gpu.rfind("unavailable", 0) != 0) return;
  const NvidiaDevices devices = nvidia_devices(root);
  if (devices.addresses.empty()) return;
  const std::string place = fmt::format("an NVIDIA GPU is at {}", devices.addresses.front());
  if (!devices.has_kernel_driver) {
    findings.push_back({"no_gpu_driver", place + ", and the kernel has no driver of it",
                        "Install NVIDIA's driver, after which nvidia-smi lists the GPU. Until then all computes on the "
                        "CPU."});
    return;
  }
  findings.push_back(
      {"gpu_not_reachable", fmt::format("{}, and this process cannot reach it ({})", place, machine.gpu),
       "In a container: start it with --gpus all. Elsewhere: install the libraries of the driver that the kernel has "
       "(libnvidia-ml.so.1, libcuda.so.1)."});
}

}  // namespace

std::optional<Finding> debug_variable_finding(const std::string& name, const std::string& value) {
  const std::string_view effect = debug_effect(name, value);
  if (effect.empty()) return std::nullopt;
  return Finding{"debug_mode", fmt::format("{}={} is set: {}", name, without_credentials(value), effect),
                 "It is for finding a fault, and each step pays for it: unset it once the fault is found."};
}

std::vector<Finding> machine_findings(const Machine& machine, const std::string& root) {
  std::vector<Finding> findings;
  look_at_cores(machine, findings);
  look_at_memory(machine, findings);
  look_at_memory_use(root, findings);
  look_at_huge_pages(root, findings);
  look_at_governor(root, findings);
  look_at_load(machine, root, findings);
  look_at_variables(findings);
  look_at_debug_variables(findings);
  look_at_gpu(machine, root, findings);
  return findings;
}

}  // namespace headrace
