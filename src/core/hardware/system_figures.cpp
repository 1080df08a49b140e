#include "core/hardware/system_figures.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "core/hardware/cpu_load.h"
#include "core/hardware/detail/system_text.h"
#include "core/hardware/machine.h"

namespace headrace {
namespace {

using detail::bytes_of;
using detail::parse_integer;
using detail::read_system_text;
using detail::split;
using detail::trimmed;
using detail::value_of;
using detail::words_of;

constexpr double kSectorBytes = 512;  // Of /proc/diskstats, whatever the disk's own are.

}  // namespace

SystemReader::SystemReader(std::string root, const std::string& nvml_library)
    : root_(std::move(root)), nvml_(nvml_library) {}

std::vector<SystemFigure> SystemReader::read() {
  Totals now;
  now.at_s = static_cast<double>(monotonic_ns()) * 1e-9;
  std::vector<SystemFigure> figures;
  read_process(now, figures);
  read_machine(now, figures);
  read_disks(now);
  read_network(now);
  read_gpus(figures);
  if (before_ && now.at_s > before_->at_s) {
    for (const auto& [name, count] : now.counts) {
      const auto earlier = before_->counts.find(name);
      if (earlier == before_->counts.end() || count < earlier->second) continue;  // A disk or interface came or went.
      figures.push_back({name, (count - earlier->second) / (now.at_s - before_->at_s)});
    }
    for (const auto& [name, ticks] : now.shares) {
      const auto earlier = before_->shares.find(name);
      if (earlier == before_->shares.end() || !(ticks.second > earlier->second.second)) continue;
      const double share = (ticks.first - earlier->second.first) / (ticks.second - earlier->second.second);
      figures.push_back({name, std::clamp(share, 0.0, 1.0)});
    }
  }
  before_ = std::move(now);
  return figures;
}

void SystemReader::read_process(Totals& totals, std::vector<SystemFigure>& figures) const {
  totals.counts["process.cpu_cores"] = static_cast<double>(process_cpu_ns()) * 1e-9;
  if (const auto resident = resident_memory()) {
    figures.push_back({"process.resident_bytes", static_cast<double>(*resident)});
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    totals.counts["process.minor_faults_per_s"] = static_cast<double>(usage.ru_minflt);
    totals.counts["process.major_faults_per_s"] = static_cast<double>(usage.ru_majflt);
    totals.counts["process.voluntary_switches_per_s"] = static_cast<double>(usage.ru_nvcsw);
    totals.counts["process.involuntary_switches_per_s"] = static_cast<double>(usage.ru_nivcsw);
  }
  const auto io = read_system_text(root_ + "/proc/self/io");
  if (!io) return;
  constexpr std::array<std::array<const char*, 2>, 4> kNames{{{"rchar", "process.read_bytes_per_s"},
                                                              {"wchar", "process.written_bytes_per_s"},
                                                              {"read_bytes", "process.disk_read_bytes_per_s"},
                                                              {"write_bytes", "process.disk_written_bytes_per_s"}}};
  for (const auto& [key, name] : kNames) {
    const auto value = value_of(*io, key, ':');
    const auto number = value ? parse_integer(*value) : std::nullopt;
    if (number) totals.counts[name] = static_cast<double>(*number);
  }
}

void SystemReader::read_machine(Totals& totals, std::vector<SystemFigure>& figures) const {
  if (const auto memory = read_system_text(root_ + "/proc/meminfo")) {
    if (const auto bytes = bytes_of(*memory, "MemAvailable")) {
      figures.push_back({"machine.memory_available_bytes", static_cast<double>(*bytes)});
    }
    if (const auto bytes = bytes_of(*memory, "MemTotal")) {
      figures.push_back({"machine.memory_total_bytes", static_cast<double>(*bytes)});
    }
  }
  const auto text = read_system_text(root_ + "/proc/stat");
  if (!text) return;
  for (const std::string_view line : split(*text, '\n')) {
    const std::string_view key = line.substr(0, line.find(' '));
    if (key == "ctxt") {
      const auto number = parse_integer(trimmed(line.substr(key.size())));
      if (number) totals.counts["machine.context_switches_per_s"] = static_cast<double>(*number);
    }
    if (!key.starts_with("cpu")) continue;
    // The lines of single cores have the form of the first one.
    const auto times = parse_cpu_times(fmt::format("cpu {}", line.substr(key.size())));
    if (!times) continue;
    const std::string name = key == "cpu" ? "machine.cpu_share" : fmt::format("machine.core.{}.share", key.substr(3));
    totals.shares[name] = {static_cast<double>(times->busy), static_cast<double>(times->total())};
  }
}

void SystemReader::read_disks(Totals& totals) const {
  const auto text = read_system_text(root_ + "/proc/diskstats");
  if (!text) return;
  double read = 0, written = 0;
  bool is_known = false;
  for (const std::string_view line : split(*text, '\n')) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() < 10 || words[2].starts_with("loop") || words[2].starts_with("ram")) continue;
    std::error_code error;  // Partitions have no folder there: their disks count what they do,
    const std::string folder = fmt::format("{}/sys/block/{}", root_, words[2]);
    if (!std::filesystem::exists(folder, error)) continue;
    // and so do those that a volume or an array is made of.
    if (std::filesystem::directory_iterator(folder + "/slaves", error) != std::filesystem::directory_iterator())
      continue;
    const auto sectors_read = parse_integer(words[5]), sectors_written = parse_integer(words[9]);
    if (!sectors_read || !sectors_written) continue;
    read += static_cast<double>(*sectors_read) * kSectorBytes;
    written += static_cast<double>(*sectors_written) * kSectorBytes;
    is_known = true;
  }
  if (!is_known) return;
  totals.counts["machine.disk_read_bytes_per_s"] = read;
  totals.counts["machine.disk_written_bytes_per_s"] = written;
}

void SystemReader::read_network(Totals& totals) const {
  const auto text = read_system_text(root_ + "/proc/net/dev");
  if (!text) return;
  double received = 0, sent = 0;
  for (const std::string_view line : split(*text, '\n')) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || trimmed(line.substr(0, colon)) == "lo") continue;
    const std::vector<std::string_view> words = words_of(line.substr(colon + 1));
    if (words.size() < 9) continue;
    const auto bytes_received = parse_integer(words[0]), bytes_sent = parse_integer(words[8]);
    if (!bytes_received || !bytes_sent) continue;
    received += static_cast<double>(*bytes_received);
    sent += static_cast<double>(*bytes_sent);
  }
  totals.counts["machine.network_received_bytes_per_s"] = received;
  totals.counts["machine.network_sent_bytes_per_s"] = sent;
}

void SystemReader::read_gpus(std::vector<SystemFigure>& figures) const {
  const std::vector<GpuFigures> gpus = nvml_.figures();
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto add = [&](const char* name, const auto& value) {
      if (value) figures.push_back({fmt::format("gpu.{}.{}", i, name), static_cast<double>(*value)});
    };
    add("utilization", gpus[i].utilization);
    add("memory_used_bytes", gpus[i].memory_used);
    add("memory_total_bytes", gpus[i].memory_total);
    add("power_watts", gpus[i].power_watts);
    add("temperature_celsius", gpus[i].temperature_celsius);
    add("clock_hertz", gpus[i].clock_hertz);
    add("memory_clock_hertz", gpus[i].memory_clock_hertz);
  }
}

}  // namespace headrace
