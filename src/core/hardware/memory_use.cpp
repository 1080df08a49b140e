#include "core/hardware/memory_use.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/hardware/cgroup.h"
#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

using detail::bytes_of;

std::optional<MemoryUse> used_of(std::optional<std::int64_t> limit, std::optional<std::int64_t> left, std::string of) {
  if (!limit || !left || *limit <= 0) return std::nullopt;
  const double share = 1 - static_cast<double>(*left) / static_cast<double>(*limit);
  return MemoryUse{std::clamp(share, 0.0, 1.0), std::move(of)};
}

}  // namespace

std::optional<MemoryUse> memory_use(const std::string& root) {
  const std::string machine = detail::read_system_text(root + "/proc/meminfo").value_or("");
  const auto of_machine = used_of(bytes_of(machine, "MemTotal"), bytes_of(machine, "MemAvailable"), "machine");
  const CgroupLimits groups = read_cgroup_limits(root);
  const auto of_groups = used_of(groups.memory, cgroup_memory_left(root), groups.memory_from);
  if (!of_machine || !of_groups) return of_machine ? of_machine : of_groups;
  return of_groups->share > of_machine->share ? of_groups : of_machine;
}

}  // namespace headrace
