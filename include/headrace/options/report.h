// Where a training run sends its figures while it goes on.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <string>
#include <type_traits>

namespace headrace {

// As MonitorOptions has them (headrace/monitor.h); empty: off.
struct ReportOptions {
  std::string tensorboard{};
  std::string csv{};
  std::string json_lines{};
  std::string events{};
  std::string prometheus{};
  std::string otlp{};
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
        "A file to which events are appended as JSON, a line each: which settings are applied, and sinks that fail.");
  visit("prometheus", o.prometheus,
        "PORT or HOST:PORT, at which Prometheus' text of the newest figures is served as /metrics; without a host "
        "127.0.0.1, port 0 is any that is free.");
  visit("otlp", o.otlp, "http://HOST:4318 of an OpenTelemetry collector, to which the newest figures go.");
}

}  // namespace headrace
