#include "app/cli/live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace {
namespace {

using Figures = std::map<std::string, double>;

constexpr const char* kUnavailable = "unavailable";
constexpr std::array kParts{"data_wait", "transfer", "forward", "backward", "optimizer", "other"};

std::optional<double> figure(const Figures& figures, const std::string& name) {
  const auto found = figures.find(name);
  return found == figures.end() ? std::nullopt : std::optional<double>(found->second);
}

// "0:40", "1:02:05".
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  const std::int64_t minutes = whole / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes * 1e-9);
  if (bytes >= 1e6) return fmt::format("{:.2f} MB", bytes * 1e-6);
  return fmt::format("{:.0f} bytes", bytes);
}

std::string place_line(const LivePlace& place, const Figures& figures) {
  std::string line = fmt::format("step {}", place.step ? fmt::to_string(*place.step) : kUnavailable);
  if (place.step && place.total) line += fmt::format(" of {}", *place.total);
  line += place.steps_per_s ? fmt::format("; rate {:.2f} steps/s", *place.steps_per_s) : "; rate unavailable";
  if (const auto samples = figure(figures, "samples_per_s")) line += fmt::format(", {:.0f} samples/s", *samples);
  const bool has_end = place.step && place.total && place.steps_per_s && *place.steps_per_s > 0;
  if (!has_end) return line + "; time left unavailable";
  const auto left = static_cast<double>(std::max<std::int64_t>(*place.total - *place.step, 0));
  return line + "; time left " + clock_text(left / *place.steps_per_s);
}

std::string split_line(const Figures& figures) {
  double total = 0;
  for (const char* part : kParts) total += figure(figures, fmt::format("time.{}_s", part)).value_or(0);
  if (!(total > 0)) return "time split unavailable";
  std::string line;
  for (const char* part : kParts) {
    const auto seconds = figure(figures, fmt::format("time.{}_s", part));
    if (seconds) line += fmt::format("{}{} {:.0f}%", line.empty() ? "" : ", ", part, 100 * *seconds / total);
  }
  return "time split " + line;
}

std::string queue_line(const Figures& figures) {
  std::string line;
  for (const auto& [name, value] : figures) {
    if (name.find("queue") == std::string::npos) continue;
    line += fmt::format("{}{} {:g}", line.empty() ? "" : ", ", name, value);
  }
  return "queues " + (line.empty() ? kUnavailable : line);
}

std::string memory_line(const Figures& figures) {
  const auto bytes = figure(figures, "process.resident_bytes");
  const auto rate = figure(figures, "cache.hit_rate");
  return fmt::format("memory {}; cache hit rate {}", bytes ? bytes_text(*bytes) : kUnavailable,
                     rate ? fmt::format("{:.1f}%", 100 * *rate) : kUnavailable);
}

}  // namespace

std::vector<std::string> live_lines(const LivePlace& place, const Figures& figures) {
  return {place_line(place, figures), split_line(figures), queue_line(figures), memory_line(figures)};
}

}  // namespace headrace
