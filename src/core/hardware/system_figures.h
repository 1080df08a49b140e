// What this process and this machine do now, by name: cores, memory, faults, switches, disks, network, GPUs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/hardware/nvml.h"

namespace headrace {

struct SystemFigure {
  std::string name;
  double value = 0;
};

// For one thread at a time. Reads /proc and NVML; what they do not tell is left out, never 0.
//
// Names and units:
//   process.cpu_cores                    cores that all its threads took, 1: one core all the time
//   process.resident_bytes
//   process.{minor,major}_faults_per_s   page faults, without and with a read from a disk
//   process.{voluntary,involuntary}_switches_per_s   a thread waited; it had to give its core away
//   process.{read,written}_bytes_per_s   by read and write calls, caches included
//   process.disk_{read,written}_bytes_per_s   that reached, or will reach, a disk
//   machine.cpu_share, machine.core.<N>.share   of the time, 0 to 1; steal is no part of it
//   machine.memory_available_bytes, machine.memory_total_bytes
//   machine.context_switches_per_s
//   machine.disk_{read,written}_bytes_per_s     of whole disks
//   machine.network_{received,sent}_bytes_per_s   of all interfaces but the loopback
//   gpu.<N>.utilization (0 to 1), .memory_used_bytes, .memory_total_bytes, .power_watts, .temperature_celsius,
//   .clock_hertz, .memory_clock_hertz
class SystemReader {
 public:
  // `root` is prefixed to /proc and /sys, for tests on a fake tree.
  explicit SystemReader(std::string root = "", const std::string& nvml_library = "libnvidia-ml.so.1");

  // Rates are over the time since the last call, and not there in the first one. The cost is what monitor_bench prints.
  std::vector<SystemFigure> read();
  // Why there are no figures of a GPU; empty: there are.
  std::string gpu() const { return nvml_.why_not(); }

 private:
  struct Totals {
    double at_s = 0;
    std::map<std::string, double> counts;                     // Ever growing ones, by the name of their rate.
    std::map<std::string, std::pair<double, double>> shares;  // Busy ticks and all of them, by the name of the share.
  };
  void read_process(Totals& totals, std::vector<SystemFigure>& figures) const;
  void read_machine(Totals& totals, std::vector<SystemFigure>& figures) const;
  void read_disks(Totals& totals) const;
  void read_network(Totals& totals) const;
  void read_gpus(std::vector<SystemFigure>& figures) const;

  const std::string root_;
  const Nvml nvml_;
  std::optional<Totals> before_;
};

}  // namespace headrace
