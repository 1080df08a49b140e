// How long tasks waited for memory, as the kernel counts it: pages that were taken away and came back from a disk,
// memory that had to be freed first.
#pragma once

#include <optional>
#include <string>

namespace headrace {

// Seconds in which some task of this process's control group (version 2), or where that is not counted of the machine,
// waited so, since it began. From the pressure-stall files. nullopt: the kernel does not count it. `root` is prefixed
// to every path, for tests on a fake tree.
std::optional<double> memory_stall_s(const std::string& root = "");

}  // namespace headrace
