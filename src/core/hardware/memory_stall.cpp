#include "core/hardware/memory_stall.h"

#include "core/hardware/cgroup.h"
#include "core/hardware/cpu_load.h"
#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

// A memory.pressure file has the lines of a cpu.pressure file.
std::optional<double> stall_in(const std::string& path) {
  const auto text = detail::read_system_text(path);
  const auto pressure = text ? parse_cpu_pressure(*text) : std::nullopt;
  if (!pressure) return std::nullopt;
  return static_cast<double>(pressure->total_us) * 1e-6;
}

}  // namespace

std::optional<double> memory_stall_s(const std::string& root) {
  if (const auto folder = cgroup_v2_folder(root)) {
    if (const auto of_group = stall_in(root + *folder + "/memory.pressure")) return of_group;
  }
  return stall_in(root + "/proc/pressure/memory");
}

}  // namespace headrace
