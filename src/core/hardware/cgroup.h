// What the control groups of this process grant it: version 1, version 2 and both at once (hybrid).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

struct CgroupLimits {
  std::optional<std::int64_t> memory;  // Bytes: the smallest limit of the process's groups and those above.
  std::string memory_from;             // "cgroup v2 /sys/fs/cgroup/user.slice"
  std::optional<double> cpus;          // The smallest quota over its period.
};

// `root` is prefixed to every path that is read.
CgroupLimits read_cgroup_limits(const std::string& root);

// Bytes that this process's groups of memory and those above still grant: the least of limit less use, where file pages
// that were not used lately count as free, because the kernel gives them up first. nullopt: no group has a limit.
std::optional<std::int64_t> cgroup_memory_left(const std::string& root);

// Of this process, below `root`: "/sys/fs/cgroup/user.slice". nullopt: no hierarchy of version 2 is mounted.
std::optional<std::string> cgroup_v2_folder(const std::string& root);

}  // namespace headrace
