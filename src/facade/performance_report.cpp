#include "facade/performance_report.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>

namespace headrace::facade {
namespace {

using nlohmann::ordered_json;

double number(const ordered_json& json, const char* key) {
  return json.at(key).get<double>();
}

std::string times_of(const ordered_json& steps) {
  std::string lines =
      fmt::format("\n  step time of the newest: mean {:.6f} s, p50 {:.6f}, p95 {:.6f}, p99 {:.6f}",
                  number(steps, "mean"), number(steps, "p50"), number(steps, "p95"), number(steps, "p99"));
  const ordered_json& slowdown = steps.at("slowdown");
  if (!slowdown.is_null()) {
    lines += fmt::format("\n  steps take {:.2f} times as long since some before the {}th", number(slowdown, "ratio"),
                         slowdown.at("found_at").get<std::int64_t>());
  }
  return lines;
}

std::string gpu_lines(const ordered_json& gpu) {
  if (!gpu.at("available").get<bool>())
    return fmt::format("\n  GPU utilization: {}", gpu.at("reason").get<std::string>());
  std::string lines;
  for (const auto& [device, figures] : gpu.at("devices").items()) {
    const bool is_told = figures.contains("utilization") && figures["utilization"].is_number();
    lines += fmt::format("\n  GPU {} utilization: {}", device,
                         is_told ? fmt::format("{:.0f}%", 100 * number(figures, "utilization")) : "unavailable");
  }
  return lines;
}

}  // namespace

std::string performance_report(const ordered_json& summary) {
  const ordered_json &average = summary.at("average_step_time"), &memory = summary.at("memory");
  std::string text = fmt::format("Performance report\n  steps: {} in {:.3f} s\n  average step time: {}",
                                 summary.at("total_steps").get<std::int64_t>(), number(summary, "total_time"),
                                 average.is_null() ? "unavailable" : fmt::format("{:.6f} s", average.get<double>()));
  if (!summary.at("step_time").is_null()) text += times_of(summary["step_time"]);
  text += memory.is_null() ? "\n  memory: unavailable"
                           : fmt::format("\n  memory: {:.0f} bytes now, {:.0f} at most, {:.0f} on average",
                                         number(memory, "current"), number(memory, "peak"), number(memory, "mean"));
  text += gpu_lines(summary.at("gpu"));
  text += fmt::format("\n  records: {} taken, {} dropped", summary.at("recorded").get<std::int64_t>(),
                      summary.at("dropped").get<std::int64_t>());
  for (const ordered_json& sink : summary.at("sinks")) {
    const auto reason = sink.at("reason").get<std::string>();
    text += fmt::format("\n  {}: {}{}", sink.at("name").get<std::string>(), sink.at("applied").get<std::string>(),
                        reason.empty() ? "" : fmt::format(" ({})", reason));
  }
  return text;
}

}  // namespace headrace::facade
