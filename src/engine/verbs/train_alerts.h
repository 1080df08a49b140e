// The alerts of [report.alerts]: their rules, which of them can be judged in this run, and what became of them.
#pragma once

#include <headrace/alerts.h>
#include <headrace/error.h>
#include <headrace/flight_recorder.h>
#include <headrace/monitor_event.h>
#include <headrace/options/report.h>

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

// Names, metrics and hysteresis are those of hr.standard_alerts() (python/headrace/_monitor.py). Empty: none is asked
// for.
std::vector<AlertRule> alert_rules(const AlertOptions& options);

// A row for each key that is not off. `cache` is the loader's; where nothing is cached the hit rate is "unavailable",
// as is memory where `resident_bytes` is nullopt.
std::vector<Applied> alert_settings(const AlertOptions& options, const Applied& cache,
                                    std::optional<std::int64_t> resident_bytes);

// What watching a run came to.
struct WatchedRun {
  std::vector<Applied> settings;     // Of report.alerts and report.flights, as far as they are asked for.
  std::vector<MonitorEvent> alerts;  // Raised, and over again: the newest 1,000.
  std::vector<FlightRecorder::Status::Dump> flights;
  bool any_raised = false;

  // An event "alert" of the monitor's.
  void add(const MonitorEvent& alert);
};

// "alerts", as event_json() has them, and "flights": reason, path, events and dropped of each.
nlohmann::ordered_json to_json(const WatchedRun& run);

}  // namespace headrace
