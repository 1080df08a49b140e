#include "python/core/monitor_object.h"

#include <unistd.h>

#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

std::vector<MetricValue> metrics_of(const nb::dict& metrics) {
  std::vector<MetricValue> result;
  result.reserve(nb::len(metrics));
  for (const auto& [key, value] : metrics) {
    if (!nb::isinstance<nb::str>(key)) {
      fail(ErrorCode::invalid_argument, "monitor: metrics: wanted names, found a key {} of class {}", repr_of(key),
           class_name(key));
    }
    const double number = PyFloat_AsDouble(value.ptr());  // As float(value): of a tensor of one element, too.
    if (number == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      fail(ErrorCode::invalid_argument, "monitor: metrics[\"{}\"]: wanted a number, found {}", text_of(key),
           class_name(value));
    }
    result.push_back({text_of(key), number});
  }
  return result;
}

nb::dict dict_of(const Alert& alert) {
  nb::dict dict;
  dict["name"] = str_of(alert.name);
  dict["metric"] = str_of(alert.metric);
  dict["kind"] = str_of(to_string(alert.kind));
  dict["raised"] = alert.raised;
  dict["value"] = alert.value;
  dict["limit"] = alert.limit;
  dict["step"] = alert.step < 0 ? nb::object(nb::none()) : nb::object(nb::int_(alert.step));
  dict["sentence"] = str_of(alert.sentence);
  return dict;
}

}  // namespace

MonitorObject::MonitorObject(MonitorOptions options)
    : owner_(::getpid()), monitor_(std::make_shared<Monitor>(std::move(options))) {}

MonitorObject::~MonitorObject() {
  // In a forked process the monitor's destructor would wait for a thread that is not there: its memory stays.
  if (::getpid() != owner_) static_cast<void>(new (std::nothrow) std::shared_ptr<Monitor>(std::move(monitor_)));
}

std::shared_ptr<Monitor> MonitorObject::open_monitor() const {
  return ::getpid() == owner_ ? monitor_ : nullptr;
}

bool MonitorObject::record(std::int64_t step, const nb::dict& metrics) {
  std::vector<MetricValue> values = metrics_of(metrics);
  const std::shared_ptr<Monitor> monitor = open_monitor();
  return monitor != nullptr && monitor->record(step, std::move(values));
}

bool MonitorObject::flush(double timeout_s) {
  if (!(timeout_s >= 0 && timeout_s <= 1e6)) {
    fail(ErrorCode::invalid_argument, "monitor: timeout_s: wanted 0 to 1e6, found {}", timeout_s);
  }
  const std::shared_ptr<Monitor> monitor = open_monitor();
  if (monitor == nullptr) return true;
  const nb::gil_scoped_release waiting;
  return monitor->flush(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout_s)));
}

void MonitorObject::close() {
  std::shared_ptr<Monitor> monitor = open_monitor();
  if (monitor == nullptr) return;
  {
    const nb::gil_scoped_release waiting;
    monitor->flush();
  }
  last_status_ = monitor->status();
  last_values_ = monitor->latest();
  last_alerts_ = monitor->take_alerts();
  monitor_.reset();
  const nb::gil_scoped_release waiting;
  monitor.reset();
}

nlohmann::ordered_json MonitorObject::status() const {
  const std::shared_ptr<Monitor> monitor = open_monitor();
  const MonitorStatus status = monitor != nullptr ? monitor->status() : last_status_;
  nlohmann::ordered_json sinks = nlohmann::ordered_json::array();
  for (const SinkStatus& sink : status.sinks) {
    sinks.push_back({{"name", sink.applied.key},
                     {"requested", sink.applied.requested},
                     {"applied", sink.applied.applied},
                     {"reason", sink.applied.reason},
                     {"records", sink.records},
                     {"lost", sink.lost}});
  }
  return {{"sinks", sinks},
          {"recorded", status.recorded},
          {"dropped", status.dropped},
          {"not_finite", status.not_finite},
          {"gpu", status.gpu}};
}

nb::dict MonitorObject::latest() const {
  nb::dict dict;
  const std::shared_ptr<Monitor> monitor = open_monitor();
  for (const MetricValue& metric : monitor != nullptr ? monitor->latest() : last_values_) {
    dict[str_of(metric.name)] = metric.value;
  }
  return dict;
}

nb::list MonitorObject::take_alerts() {
  nb::list list;
  const std::shared_ptr<Monitor> monitor = open_monitor();
  for (const Alert& alert : monitor != nullptr ? monitor->take_alerts() : std::exchange(last_alerts_, {})) {
    list.append(dict_of(alert));
  }
  return list;
}

void MonitorObject::clear() {
  last_values_.clear();
  last_alerts_.clear();
  if (const std::shared_ptr<Monitor> monitor = open_monitor()) monitor->clear();
}

}  // namespace headrace::python
