#include "core/hardware/cpu_load.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>
#include <vector>

#include "core/base/clock.h"
#include "core/hardware/cgroup.h"
#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

using detail::parse_integer;
using detail::read_system_text;
using detail::split;
using detail::trimmed;
using detail::words_of;

constexpr std::int64_t kTicksMin = 20;  // Of fewer, 0.1 s of two cores, a share is mostly rounding.

// Not negative, with nothing behind it.
std::optional<double> parse_number(std::string_view text) {
  const std::string whole(text);
  char* end = nullptr;
  const double value = std::strtod(whole.c_str(), &end);
  if (whole.empty() || end != whole.c_str() + whole.size() || !(value >= 0)) return std::nullopt;
  return value;
}

std::optional<std::string_view> after_prefix(std::string_view text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return std::nullopt;
  return text.substr(prefix.size());
}

std::optional<CpuPressure> read_pressure(const std::string& path) {
  const auto text = read_system_text(path);
  return text ? parse_cpu_pressure(*text) : std::nullopt;
}

bool is_process_folder(const std::filesystem::path& path) {
  const std::string name = path.filename().native();
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Workers of a data loader work for this process, whoever of its descendants started them.
std::optional<std::int64_t> ticks_of_tree(const std::string& root) {
  std::map<std::int64_t, ProcessTimes> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root + "/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_process_folder(entry->path())) continue;
    const auto text = read_system_text(entry->path().native() + "/stat");  // Gone by now where there is none.
    if (const auto found = text ? parse_process_times(*text) : std::nullopt) processes[found->pid] = *found;
  }
  const std::int64_t self = getpid();
  if (error || !processes.contains(self)) return std::nullopt;
  std::int64_t ticks = 0;
  for (const auto& [pid, process] : processes) {
    std::int64_t at = pid;
    // A chain longer than there are processes would be a ring, which a process that ended meanwhile can leave.
    for (std::size_t depth = 0; at != self && processes.contains(at) && depth < processes.size(); ++depth) {
      at = processes[at].parent;
    }
    if (at == self) ticks += process.ticks;
  }
  return ticks;
}

double share(std::int64_t part, std::int64_t whole) {
  return std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
}

std::optional<double> pressure_between(const std::optional<CpuPressure>& before,
                                       const std::optional<CpuPressure>& after, double seconds) {
  if (!before || !after || after->total_us < before->total_us || !(seconds > 0)) return std::nullopt;
  return std::min(1.0, static_cast<double>(after->total_us - before->total_us) * 1e-6 / seconds);
}

}  // namespace

std::optional<CpuPressure> parse_cpu_pressure(std::string_view text) {
  for (const std::string_view line : split(text, '\n')) {
    const auto words = words_of(trimmed(line));
    if (words.size() < 5 || words[0] != "some") continue;
    const auto avg10 = after_prefix(words[1], "avg10="), total = after_prefix(words[4], "total=");
    if (!avg10 || !total) return std::nullopt;
    const auto percent = parse_number(*avg10);
    const auto total_us = parse_integer(*total);
    if (!percent || *percent > 100 || !total_us || *total_us < 0) return std::nullopt;
    return CpuPressure{*percent / 100, *total_us};
  }
  return std::nullopt;
}

// "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guests are in user and nice already.
std::optional<CpuTimes> parse_cpu_times(std::string_view text) {
  const auto words = words_of(trimmed(text.substr(0, text.find('\n'))));
  if (words.size() < 9 || words[0] != "cpu") return std::nullopt;
  std::vector<std::int64_t> ticks;
  for (std::size_t i = 1; i < 9; ++i) {
    const auto value = parse_integer(words[i]);
    if (!value || *value < 0) return std::nullopt;
    ticks.push_back(*value);
  }
  return CpuTimes{ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6], ticks[3] + ticks[4], ticks[7]};
}

// "PID (NAME) STATE PARENT ...": a name may hold blanks and brackets, so that the last ")" ends it.
std::optional<ProcessTimes> parse_process_times(std::string_view text) {
  const std::size_t open = text.find(" ("), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const auto pid = parse_integer(text.substr(0, open));
  const auto words = words_of(trimmed(text.substr(close + 1)));
  constexpr std::size_t kParent = 1, kTicks = 11;  // utime, stime, cutime, cstime.
  if (!pid || words.size() < kTicks + 4) return std::nullopt;
  const auto parent = parse_integer(words[kParent]);
  if (!parent) return std::nullopt;
  ProcessTimes process{*pid, *parent, 0};
  for (std::size_t i = kTicks; i < kTicks + 4; ++i) {
    const auto ticks = parse_integer(words[i]);
    if (!ticks || *ticks < 0) return std::nullopt;
    process.ticks += *ticks;
  }
  return process;
}

CpuLoad read_cpu_load(const std::string& root) {
  CpuLoad load;
  load.at_s = static_cast<double>(monotonic_ns()) * 1e-9;
  if (const auto text = read_system_text(root + "/proc/stat")) load.times = parse_cpu_times(*text);
  load.own_ticks = ticks_of_tree(root);
  load.machine = read_pressure(root + "/proc/pressure/cpu");
  if (const auto folder = cgroup_v2_folder(root)) load.group = read_pressure(root + *folder + "/cpu.pressure");
  return load;
}

CpuUse cpu_use_between(const CpuLoad& before, const CpuLoad& after) {
  CpuUse use;
  const double seconds = after.at_s - before.at_s;
  use.pressure = pressure_between(before.machine, after.machine, seconds);
  use.group_pressure = pressure_between(before.group, after.group, seconds);
  if (after.machine) use.pressure_avg10 = after.machine->avg10;
  if (after.group) use.group_pressure_avg10 = after.group->avg10;
  if (!before.times || !after.times) return use;
  const std::int64_t total = after.times->total() - before.times->total();
  if (total < kTicksMin) return use;
  const std::int64_t busy = after.times->busy - before.times->busy;
  use.idle = share(after.times->idle - before.times->idle, total);
  use.steal = share(after.times->steal - before.times->steal, total);
  if (!before.own_ticks || !after.own_ticks) return use;
  const std::int64_t own = *after.own_ticks - *before.own_ticks;
  use.own = share(own, total);
  use.others = share(busy - own, total);
  return use;
}

}  // namespace headrace
