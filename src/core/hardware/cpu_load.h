// How much of the machine's CPU time other programs take, and how long tasks wait for a core, as the kernel counts
// both.
//
// Read from /proc/stat, /proc/PID/stat and the pressure-stall files (Linux 4.20 and later, where they are switched on).
// What a kernel or a container does not show is nullopt, never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// The line "some" of a cpu.pressure file: at least one task was ready to run and had no core.
struct CpuPressure {
  double avg10 = 0;           // Share of the last 10 s, 0 to 1.
  std::int64_t total_us = 0;  // Since boot, or since the control group began.
};
// nullopt: the text is not such a file.
std::optional<CpuPressure> parse_cpu_pressure(std::string_view text);

// The first line of /proc/stat, in clock ticks of all cores together. Of a virtual machine, `steal` went to others on
// its host.
struct CpuTimes {
  std::int64_t busy = 0, idle = 0, steal = 0;

  std::int64_t total() const { return busy + idle + steal; }
};
std::optional<CpuTimes> parse_cpu_times(std::string_view text);

// /proc/PID/stat. `ticks` are its own and those of its children that it has waited for.
struct ProcessTimes {
  std::int64_t pid = 0, parent = 0, ticks = 0;
};
std::optional<ProcessTimes> parse_process_times(std::string_view text);

struct CpuLoad {
  double at_s = 0;  // Monotonic.
  std::optional<CpuTimes> times;
  std::optional<std::int64_t> own_ticks;  // Of this process and all that descend from it.
  std::optional<CpuPressure> machine, group;
};

// As it is now: some 10 us a process of the machine. `root` is prefixed to every path, for tests on a fake tree.
CpuLoad read_cpu_load(const std::string& root = "");

// Between two readings. Shares are of all cores' time: of two cores, one busy neighbour takes 0.5.
struct CpuUse {
  std::optional<double> own, others, steal, idle;
  std::optional<double> pressure, pressure_avg10;              // Of the machine: in this time; in the last 10 s of it.
  std::optional<double> group_pressure, group_pressure_avg10;  // Of this process's control group (version 2).
};
CpuUse cpu_use_between(const CpuLoad& before, const CpuLoad& after);

}  // namespace headrace
