// What this process runs on and what it may use of it. Read from /proc, /sys and cpuid; nothing is changed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

struct Machine {
  std::string cpu;                               // Model name as the system gives it, or "unavailable".
  int cores_online = 0;                          // Of the machine; 0: not known (null in JSON).
  int cores_usable = 0;                          // By affinity and cgroup CPU quota, rounded up, at least 1.
  std::optional<double> cpu_quota;               // Cores granted by the cgroup (v1, v2), if limited.
  std::vector<std::string> instruction_sets;     // Those that matter here: core/hardware/instruction_sets.h.
  std::optional<std::int64_t> memory_total;      // Bytes of the machine.
  std::optional<std::int64_t> memory_limit;      // Bytes: the smallest of machine, cgroup v1, v2 and RLIMIT_AS.
  std::string memory_limit_from;                 // "machine", "cgroup v2 /sys/fs/cgroup/x", "rlimit".
  std::optional<std::int64_t> last_level_cache;  // Bytes.
  int numa_nodes = 1;
  std::string system;  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-18-amd64".
  std::string gpu;     // NVML's words for device 0, or "unavailable: " and why there are none: core/hardware/nvml.h.
};

// `root` is prefixed to /proc, /sys and /etc paths, for tests on a fake tree.
Machine detect_machine(const std::string& root = "");
nlohmann::ordered_json to_json(const Machine& machine);

// Bytes: resident now, and the largest since process start or the last reset_peak_memory() (VmHWM). nullopt:
// unreadable.
std::optional<std::int64_t> resident_memory();
std::optional<std::int64_t> peak_memory();
std::optional<std::int64_t> peak_memory_of(pid_t process);  // The largest of another process.
// Bytes that this process can still get: the least of what the kernel calls available and what its control groups
// leave. `root` is prefixed to every path that is read. nullopt: unavailable. About 100 us.
std::optional<std::int64_t> free_memory(const std::string& root = "");
bool reset_peak_memory();  // Writes 5 to /proc/self/clear_refs; false when the kernel refuses.

}  // namespace headrace
