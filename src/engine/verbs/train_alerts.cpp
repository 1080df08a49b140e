#include "engine/verbs/train_alerts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

namespace headrace {
namespace {

constexpr std::size_t kAlertsKept = 1000;
constexpr std::int64_t kLookupsMin = 100;  // Before them a hit rate says little.
constexpr double kMiB = 1 << 20;
constexpr const char* kUnavailable = "unavailable";

AlertRule rule_of(const char* name, const char* metric, AlertKind kind, double limit) {
  AlertRule rule;
  rule.name = name;
  rule.metric = metric;
  rule.kind = kind;
  rule.limit = limit;
  return rule;
}

std::string key_of(const char* name) {
  return fmt::format("report.alerts.{}", name);
}

Applied hit_rate_setting(double limit, const Applied& cache) {
  const std::string asked = fmt::format("{}", limit);
  // "auto" may put one in force later.
  if (cache.applied != "none" || cache.requested == "auto") return {key_of("hit_rate_min"), asked, asked, ""};
  std::string reason = fmt::format("{} is none: nothing is looked up in a cache", cache.key);
  if (!cache.reason.empty()) reason += ", as " + cache.reason;
  return {key_of("hit_rate_min"), asked, kUnavailable, std::move(reason)};
}

Applied memory_setting(const char* name, std::string asked, std::optional<std::int64_t> resident_bytes) {
  if (resident_bytes) return {key_of(name), asked, asked, ""};
  return {key_of(name), std::move(asked), kUnavailable, "the system does not tell the memory of this process"};
}

}  // namespace

std::vector<AlertRule> alert_rules(const AlertOptions& options) {
  std::vector<AlertRule> rules;
  if (options.hit_rate_min > 0) {
    AlertRule rule = rule_of("cache hit rate", "cache.hit_rate", AlertKind::below, options.hit_rate_min);
    rule.counted_by = "cache.lookups";
    rule.count_min = kLookupsMin;
    rules.push_back(std::move(rule));
  }
  if (options.memory_trend) {
    rules.push_back(rule_of("memory trend", "process.resident_bytes", AlertKind::increasing, 0));
  }
  if (options.memory_mib_max > 0) {
    rules.push_back(rule_of("memory", "process.resident_bytes", AlertKind::above, options.memory_mib_max * kMiB));
  }
  if (options.throughput_min > 0) {
    rules.push_back(rule_of("throughput", "samples_per_s", AlertKind::drop, options.throughput_min));
  }
  return rules;
}

std::vector<Applied> alert_settings(const AlertOptions& options, const Applied& cache,
                                    std::optional<std::int64_t> resident_bytes) {
  std::vector<Applied> settings;
  if (options.throughput_min > 0) {
    const std::string asked = fmt::format("{}", options.throughput_min);
    settings.push_back({key_of("throughput_min"), asked, asked, ""});
  }
  if (options.hit_rate_min > 0) settings.push_back(hit_rate_setting(options.hit_rate_min, cache));
  if (options.memory_mib_max > 0) {
    settings.push_back(memory_setting("memory_mib_max", fmt::format("{}", options.memory_mib_max), resident_bytes));
  }
  if (options.memory_trend) settings.push_back(memory_setting("memory_trend", "true", resident_bytes));
  if (options.exit_code > 0) {
    const bool any = std::any_of(settings.begin(), settings.end(),
                                 [](const Applied& setting) { return setting.applied != kUnavailable; });
    const std::string asked = fmt::format("{}", options.exit_code);
    settings.push_back({key_of("exit_code"), asked, any ? asked : "0", any ? "" : "no alert can be raised"});
  }
  return settings;
}

void WatchedRun::add(const MonitorEvent& alert) {
  for (const EventField& field : alert.fields) {
    if (field.name == "raised") any_raised = any_raised || std::get<bool>(field.value);
  }
  if (alerts.size() == kAlertsKept) alerts.erase(alerts.begin());
  alerts.push_back(alert);
}

nlohmann::ordered_json to_json(const WatchedRun& run) {
  nlohmann::ordered_json document;
  document["alerts"] = nlohmann::ordered_json::array();
  for (const MonitorEvent& alert : run.alerts) {
    document["alerts"].push_back(nlohmann::ordered_json::parse(event_json(alert)));
  }
  document["flights"] = nlohmann::ordered_json::array();
  for (const FlightRecorder::Status::Dump& flight : run.flights) {
    document["flights"].push_back(
        {{"reason", flight.reason}, {"path", flight.path}, {"events", flight.events}, {"dropped", flight.dropped}});
  }
  return document;
}

}  // namespace headrace
