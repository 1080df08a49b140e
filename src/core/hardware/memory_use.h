// How much of the memory that this process could take is in use, by whoever.
#pragma once

#include <optional>
#include <string>

namespace headrace {

struct MemoryUse {
  double share = 0;  // 0 to 1. File pages that the kernel gives up first count as free.
  std::string of;    // What it is a share of: "machine", "cgroup v2 /sys/fs/cgroup/x".
};

// The fuller of the machine and the control groups of this process, whose smallest limit is set against the least that
// any of them leaves. `root` is prefixed to /proc and /sys, for tests on a fake tree. nullopt: unavailable. About
// 100 us; any thread.
std::optional<MemoryUse> memory_use(const std::string& root = "");

}  // namespace headrace
