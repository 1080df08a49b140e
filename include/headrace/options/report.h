// Where a training run sends its figures while it goes on, and what it is watched for.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace headrace {

// The alerts that hr.standard_alerts() has, with the same hysteresis: one that was raised is over when the figure is a
// tenth of the limit on the good side. 0 and false: that one is off.
struct AlertOptions {
  double throughput_min = 0;   // Mean of the last 10 values of samples_per_s beside that of all. Standard: 0.8.
  double hit_rate_min = 0;     // Of the cache, once it was asked 100 times. Standard: 0.5.
  double memory_mib_max = 0;   // Resident in the process. Standard: 7629.4, which is 8 x 10^9 bytes.
  bool memory_trend = false;   // Standard: true.
  std::int64_t exit_code = 0;  // Of `headrace train`, after a run to its end in which an alert was raised.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, AlertOptions>
void describe(Visitor& visit, Options& o) {
  visit("throughput_min", o.throughput_min, Range<double>{0.0, 1.0},
        "An alert: the mean of the last 10 values of samples_per_s is below this share of the mean of all; 0.8 is "
        "usual. This and the others: 0 or false is off.");
  visit("hit_rate_min", o.hit_rate_min, Range<double>{0.0, 1.0},
        "An alert: the hit rate of the cache is below this, once it was asked 100 times; 0.5 is usual.");
  visit("memory_mib_max", o.memory_mib_max, Range<double>{0.0, 1e9},
        "An alert: the process holds more MiB of memory than this.");
  visit("memory_trend", o.memory_trend,
        "An alert: the memory of the process grows, by a test of its minima over 20 seconds each, seven at least.");
  visit("exit_code", o.exit_code, Range<std::int64_t>{0, 255},
        "With what headrace train exits when the run has come to its end and an alert was raised meanwhile; 0: as "
        "without alerts.");
}

// The sinks as MonitorOptions has them (headrace/monitor.h); empty: off.
struct ReportOptions {
  std::string tensorboard{};
  std::string csv{};
  std::string json_lines{};
  std::string events{};
  std::string prometheus{};
  std::string otlp{};
  std::string flights{};  // A folder of a FlightRecorder's dumps (headrace/flight_recorder.h).
  AlertOptions alerts{};
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ReportOptions>
void describe(Visitor& visit, Options& o) {
  visit("tensorboard", o.tensorboard,
        "A folder for TensorBoard event files of the figures of a training run, while it goes on. This and the "
        "others: empty is off.");
  visit("csv", o.csv, "A file to which the figures are appended as CSV.");
  visit("json_lines", o.json_lines, "A file to which the figures are appended as JSON, a line a value.");
  visit("events", o.events,
        "A file to which events are appended as JSON, a line each: which settings are applied, alerts, and sinks that "
        "fail.");
  visit("prometheus", o.prometheus,
        "PORT or HOST:PORT, at which Prometheus' text of the newest figures is served as /metrics; without a host "
        "127.0.0.1, port 0 is any that is free.");
  visit("otlp", o.otlp, "http://HOST:4318 of an OpenTelemetry collector, to which the newest figures go.");
  visit("flights", o.flights,
        "A folder for a flight recorder: the spans of the last minute (64 MiB at most) are written there as a Chrome "
        "trace when a step takes 3 times the median, when an error ends the run, and when SIGUSR2 asks for it.");
  visit("alerts", o.alerts, "");
}

}  // namespace headrace
