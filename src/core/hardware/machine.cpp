#include "core/hardware/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/hardware/cgroup.h"
#include "core/hardware/detail/system_text.h"
#include "core/hardware/instruction_sets.h"
#include "core/hardware/nvml.h"

namespace headrace {
namespace {

using detail::bytes_of;
using detail::numbers_of_list;
using detail::parse_bytes;
using detail::parse_integer;
using detail::read_system_text;
using detail::split;
using detail::trimmed;
using detail::value_of;

constexpr const char* kUnavailable = "unavailable";

// How many numbers a list such as "0-3,8" names; nullopt when it is no such list.
std::optional<int> count_of_list(std::string_view list) {
  const auto numbers = numbers_of_list(list, detail::kCoresMax);
  return numbers ? std::optional(static_cast<int>(numbers->size())) : std::nullopt;
}

std::optional<int> count_of_list_file(const std::string& path) {
  const auto text = read_system_text(path);
  return text ? count_of_list(*text) : std::nullopt;
}

void detect_cores(Machine& machine, const std::string& root, std::optional<double> quota) {
  machine.cores_online = count_of_list_file(root + "/sys/devices/system/cpu/online").value_or(0);
  const auto status = read_system_text(root + "/proc/self/status").value_or("");
  const auto allowed = value_of(status, "Cpus_allowed_list", ':');
  const auto by_affinity = allowed ? count_of_list(*allowed) : std::nullopt;
  machine.cores_usable = std::max(1, by_affinity.value_or(machine.cores_online));
  machine.cpu_quota = quota;
  if (quota && *quota < machine.cores_usable) {
    machine.cores_usable = std::max(1, static_cast<int>(std::ceil(*quota)));
  }
}

void detect_memory(Machine& machine, const std::string& root, const CgroupLimits& cgroup) {
  const auto lower_to = [&machine](std::optional<std::int64_t> limit, const std::string& from) {
    if (!limit || (machine.memory_limit && *machine.memory_limit <= *limit)) return;
    machine.memory_limit = limit;
    machine.memory_limit_from = from;
  };
  machine.memory_total = bytes_of(read_system_text(root + "/proc/meminfo").value_or(""), "MemTotal");
  lower_to(machine.memory_total, "machine");
  lower_to(cgroup.memory, cgroup.memory_from);
  // "Max address space  SOFT  HARD  bytes", either number or "unlimited".
  constexpr std::string_view kAddressSpace = "Max address space";
  const std::string limits = read_system_text(root + "/proc/self/limits").value_or("");
  for (const std::string_view line : split(limits, '\n')) {
    if (line.rfind(kAddressSpace, 0) != 0) continue;
    const std::string_view rest = trimmed(line.substr(kAddressSpace.size()));
    lower_to(parse_integer(rest.substr(0, rest.find(' '))), "rlimit");
  }
  if (machine.memory_limit_from.empty()) machine.memory_limit_from = kUnavailable;
}

std::optional<std::int64_t> detect_last_level_cache(const std::string& root) {
  std::optional<std::int64_t> bytes;
  std::int64_t level_highest = 0;
  for (int index = 0;; ++index) {
    const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu0/cache/index{}", root, index);
    const auto level_text = read_system_text(folder + "/level");
    if (!level_text) return bytes;
    const auto level = parse_integer(trimmed(*level_text));
    const std::string type(trimmed(read_system_text(folder + "/type").value_or("")));
    if (!level || *level < level_highest || type == "Instruction") continue;
    level_highest = *level;
    bytes = parse_bytes(read_system_text(folder + "/size").value_or(""));
  }
}

std::string detect_system(const std::string& root) {
  std::string name = value_of(read_system_text(root + "/etc/os-release").value_or(""), "PRETTY_NAME", '=').value_or("");
  if (name.size() >= 2 && name.front() == '"' && name.back() == '"') name = name.substr(1, name.size() - 2);
  const std::string kernel(trimmed(read_system_text(root + "/proc/sys/kernel/osrelease").value_or("")));
  if (kernel.empty()) return name.empty() ? kUnavailable : name;
  return (name.empty() ? "" : name + ", ") + "Linux " + kernel;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

std::optional<std::int64_t> peak_in(const std::string& status_file) {
  return bytes_of(read_system_text(status_file).value_or(""), "VmHWM");
}

}  // namespace

Machine detect_machine(const std::string& root) {
  Machine machine;
  const CgroupLimits cgroup = read_cgroup_limits(root);
  machine.cpu = value_of(read_system_text(root + "/proc/cpuinfo").value_or(""), "model name", ':').value_or("");
  if (machine.cpu.empty()) machine.cpu = kUnavailable;
  detect_cores(machine, root, cgroup.cpus);
  machine.instruction_sets = instruction_sets();
  detect_memory(machine, root, cgroup);
  machine.last_level_cache = detect_last_level_cache(root);
  machine.numa_nodes = std::max(1, count_of_list_file(root + "/sys/devices/system/node/online").value_or(1));
  machine.system = detect_system(root);
  machine.gpu = describe_gpu("libnvidia-ml.so.1");
  return machine;
}

nlohmann::ordered_json to_json(const Machine& machine) {
  nlohmann::ordered_json json;
  json["cpu"] = machine.cpu;
  json["cores_online"] = machine.cores_online > 0 ? nlohmann::ordered_json(machine.cores_online) : nullptr;
  json["cores_usable"] = machine.cores_usable;
  json["cpu_quota"] = or_null(machine.cpu_quota);
  json["instruction_sets"] = machine.instruction_sets;
  json["memory_total"] = or_null(machine.memory_total);
  json["memory_limit"] = or_null(machine.memory_limit);
  json["memory_limit_from"] = machine.memory_limit_from;
  json["last_level_cache"] = or_null(machine.last_level_cache);
  json["numa_nodes"] = machine.numa_nodes;
  json["system"] = machine.system;
  json["gpu"] = machine.gpu;
  return json;
}

std::optional<std::int64_t> resident_memory() {
  // "size resident shared ...", in pages: a tenth of the time that status takes, for whoever asks every few
  // milliseconds.
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  const std::vector<std::string_view> numbers =
      split({text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))}, ' ');
  const auto pages = numbers.size() > 2 ? parse_integer(numbers[1]) : std::nullopt;
  static const std::int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages ? std::optional(*pages * page_bytes) : std::nullopt;
}

std::optional<std::int64_t> peak_memory() {
  return peak_in("/proc/self/status");
}

std::optional<std::int64_t> peak_memory_of(pid_t process) {
  return peak_in(fmt::format("/proc/{}/status", process));
}

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::optional<std::int64_t> free_memory(const std::string& root) {
  const auto machine = bytes_of(read_system_text(root + "/proc/meminfo").value_or(""), "MemAvailable");
  std::optional<std::int64_t> least = cgroup_memory_left(root);
  if (machine && (!least || *machine < *least)) least = machine;
  if (!least) return std::nullopt;
  return std::max<std::int64_t>(0, *least);
}

}  // namespace headrace
