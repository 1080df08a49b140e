#include <headrace/alerts.h>
#include <headrace/diagnosis.h>
#include <headrace/monitor.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "insight/diagnose/json.h"
#include "insight/monitor/metric_series.h"
#include "insight/monitor/step_memory.h"
#include "python/core/bindings.h"
#include "python/core/monitor_object.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

std::chrono::nanoseconds interval_of(double seconds) {
  if (!(seconds >= 0 && seconds <= 86'400)) {
    fail(ErrorCode::invalid_argument, "monitor: system_s: wanted 0 to 86400 seconds, found {}", seconds);
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void register_alerts(nb::module_& module) {
  nb::class_<AlertRule>(module, "AlertRule", "One rule on the values of a metric.")
      .def(
          "__init__",
          [](AlertRule* self, std::string name, std::string metric, const std::string& kind, double limit,
             std::optional<double> clear, std::int64_t count_min, std::string counted_by, std::int64_t window) {
            AlertRule rule;
            rule.name = std::move(name);
            rule.metric = std::move(metric);
            rule.kind = alert_kind_of(kind);
            rule.limit = limit;
            rule.clear = clear;
            rule.count_min = count_min;
            rule.counted_by = std::move(counted_by);
            rule.window = window;
            new (self) AlertRule(AlertWatch(std::move(rule)).rule());  // Which checks it.
          },
          nb::arg("name"), nb::arg("metric"), nb::arg("kind"), nb::arg("limit"), nb::arg("clear").none(),
          nb::arg("count_min"), nb::arg("counted_by"), nb::arg("window"));
}

void register_monitors(nb::module_& module) {
  nb::class_<MonitorObject> monitor(module, "Monitor", nb::is_weak_referenceable(),
                                    "Takes metrics on a thread of its own to files and listeners, and judges alerts.");
  monitor
      .def(
          "__init__",
          [](MonitorObject* self, std::string tensorboard, std::string csv, std::string json_lines, std::string events,
             std::string prometheus, std::string otlp, double system_s, std::int64_t queue_records,
             std::vector<AlertRule> alerts, std::vector<std::string> histograms) {
            MonitorOptions options;
            options.tensorboard = std::move(tensorboard);
            options.csv = std::move(csv);
            options.json_lines = std::move(json_lines);
            options.events = std::move(events);
            options.prometheus = std::move(prometheus);
            options.otlp = std::move(otlp);
            options.system_interval = interval_of(system_s);
            options.queue_records = queue_records;
            options.alerts = std::move(alerts);
            options.histograms = std::move(histograms);
            new (self) MonitorObject(std::move(options));
          },
          nb::kw_only(), nb::arg("tensorboard"), nb::arg("csv"), nb::arg("json_lines"), nb::arg("events"),
          nb::arg("prometheus"), nb::arg("otlp"), nb::arg("system_s"), nb::arg("queue_records"), nb::arg("alerts"),
          nb::arg("histograms") = std::vector<std::string>{})
      .def("record", &MonitorObject::record, nb::arg("step"), nb::arg("metrics"), "False: the queue is full.")
      .def("flush", &MonitorObject::flush, nb::arg("timeout_s") = 10.0,
           "Waits until the sinks have what was recorded before; False: not in time.")
      .def("close", &MonitorObject::close)
      .def(
          "status", [](const MonitorObject& self) { return object_of(self.status()); },
          "sinks (name, requested, applied, reason, records, events, lost), recorded, dropped, not_finite, gpu.")
      .def("latest", &MonitorObject::latest, "The newest value of each name.")
      .def("tell", &MonitorObject::tell, nb::arg("level"), nb::arg("name"), nb::arg("sentence"), nb::arg("fields"),
           nb::arg("step"), "An event to all sinks; step -1: of none.")
      .def(
          "tell_setting",
          [](MonitorObject& self, std::string key, std::string requested, std::string applied, std::string reason) {
            self.tell_setting({std::move(key), std::move(requested), std::move(applied), std::move(reason)});
          },
          nb::arg("key"), nb::arg("requested"), nb::arg("applied"), nb::arg("reason"), "The event \"setting\".")
      .def("take_events", &MonitorObject::take_events,
           "Those since the last call: dicts of event, level, wall_time, step, sentence and fields.")
      .def("clear", &MonitorObject::clear);
  refuse_pickling(monitor, "a headrace.Monitor cannot be pickled or copied: it belongs to this process");
}

nlohmann::ordered_json to_json(const SeriesStatistics& figures) {
  nlohmann::ordered_json slowdown = nullptr;
  if (figures.slowdown) slowdown = {{"found_at", figures.slowdown->found_at}, {"ratio", figures.slowdown->ratio}};
  return {{"count", figures.count}, {"last", figures.last},
          {"mean", figures.mean},   {"rolling_mean", figures.rolling_mean},
          {"min", figures.minimum}, {"max", figures.maximum},
          {"p50", figures.p50},     {"p95", figures.p95},
          {"p99", figures.p99},     {"slope", figures.slope},
          {"slowdown", slowdown}};
}

void register_series(nb::module_& module) {
  nb::class_<MetricSeries>(module, "MetricSeries", "Rolling figures of one metric, and whether it came to be larger.")
      .def(nb::init<std::int64_t>(), nb::arg("window") = 1000)
      .def("add", &MetricSeries::add, nb::arg("value"))
      .def(
          "statistics",
          [](const MetricSeries& self) -> nb::object {
            const auto figures = self.statistics();
            return figures ? object_of(to_json(*figures)) : nb::object(nb::none());
          },
          "None without a value.");
  nb::class_<StepMemoryReader>(module, "StepMemoryReader", "Resident memory between two calls of take().")
      .def(nb::init<>())
      .def(
          "take",
          [](StepMemoryReader& self) -> nb::object {
            const auto memory = self.take();
            if (!memory) return nb::none();
            nb::dict dict;
            dict["current"] = memory->current;
            dict["peak"] = memory->peak;
            dict["mean"] = memory->mean;
            return dict;
          },
          "current, peak and mean bytes; None: unavailable.");
}

}  // namespace

void register_monitor(nb::module_& module) {
  register_alerts(module);
  register_monitors(module);
  register_series(module);
  module.def(
      "identify_bottlenecks",
      [](std::int64_t batches, double data_loading_s, double compute_s, std::optional<std::int64_t> mean_memory,
         std::vector<double> speeds, double data_loading_ratio, std::int64_t memory_bytes, double speed_ratio) {
        BottleneckInput input;
        input.batches = batches;
        input.data_loading_s = data_loading_s;
        input.compute_s = compute_s;
        input.mean_memory = mean_memory;
        input.speeds = std::move(speeds);
        input.thresholds.data_loading_ratio = data_loading_ratio;
        input.thresholds.memory_bytes = memory_bytes;
        input.thresholds.speed_ratio = speed_ratio;
        return object_of(headrace::to_json(identify_bottlenecks(input)));
      },
      nb::arg("batches"), nb::arg("data_loading_s"), nb::arg("compute_s"), nb::arg("mean_memory").none(),
      nb::arg("speeds"), nb::kw_only(), nb::arg("data_loading_ratio") = FindingThresholds{}.data_loading_ratio,
      nb::arg("memory_bytes") = FindingThresholds{}.memory_bytes,
      nb::arg("speed_ratio") = FindingThresholds{}.speed_ratio,
      "What batches were slow for: a list of dicts of code, sentence and advice; empty when nothing is.");
}

}  // namespace headrace::python
