#include "python/core/monitor_object.h"

#include <unistd.h>

#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

void check_name(nb::handle key, std::string_view argument) {
  if (nb::isinstance<nb::str>(key)) return;
  fail(ErrorCode::invalid_argument, "monitor: {}: wanted names, found a key {} of class {}", argument, repr_of(key),
       class_name(key));
}

std::vector<MetricValue> metrics_of(const nb::dict& metrics) {
  std::vector<MetricValue> result;
  result.reserve(nb::len(metrics));
  for (const auto& [key, value] : metrics) {
    check_name(key, "metrics");
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

EventValue event_value_of(nb::handle key, nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return truth_of(value);
  if (nb::isinstance<nb::int_>(value)) return integer_of(value);
  if (nb::isinstance<nb::float_>(value)) return real_of(value);
  if (nb::isinstance<nb::str>(value)) return text_of(value);
  fail(ErrorCode::invalid_argument, "monitor: fields[\"{}\"]: wanted a text, a number, True or False, found {}",
       text_of(key), class_name(value));
}

std::vector<EventField> fields_of(const nb::dict& fields) {
  std::vector<EventField> result;
  result.reserve(nb::len(fields));
  for (const auto& [key, value] : fields) {
    check_name(key, "fields");
    result.push_back({text_of(key), event_value_of(key, value)});
  }
  return result;
}

nb::object object_of_value(bool value) {
  return nb::bool_(value);
}
nb::object object_of_value(std::int64_t value) {
  return nb::int_(value);
}
nb::object object_of_value(double value) {
  return nb::float_(value);
}
nb::object object_of_value(const std::string& value) {
  return str_of(value);
}

nb::dict dict_of(const MonitorEvent& event) {
  nb::dict fields;
  for (const EventField& field : event.fields) {
    fields[str_of(field.name)] = std::visit([](const auto& value) { return object_of_value(value); }, field.value);
  }
  nb::dict dict;
  dict["event"] = str_of(event.name);
  dict["level"] = str_of(to_string(event.level));
  dict["wall_time"] = static_cast<double>(event.wall_ns) * 1e-9;
  dict["step"] = event.step < 0 ? nb::object(nb::none()) : nb::object(nb::int_(event.step));
  dict["sentence"] = str_of(event.sentence);
  dict["fields"] = fields;
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
  if (monitor_ != nullptr) {  // Else another thread's close() was first, and has what was left.
    last_status_ = monitor->status();
    last_values_ = monitor->latest();
    last_events_ = monitor->take_events();
    monitor_.reset();
  }
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
                     {"events", sink.events},
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

void MonitorObject::tell(const std::string& level, std::string name, std::string sentence, const nb::dict& fields,
                         std::int64_t step) {
  MonitorEvent event;
  event.level = event_level_of(level);
  event.name = std::move(name);
  event.sentence = std::move(sentence);
  event.fields = fields_of(fields);
  event.step = step;
  keep(std::move(event));
}

void MonitorObject::tell_setting(const Applied& setting) {
  keep(event_of(setting));
}

void MonitorObject::keep(MonitorEvent event) {
  if (const std::shared_ptr<Monitor> monitor = open_monitor()) {
    monitor->tell(std::move(event));
  } else {
    event.wall_ns = wall_ns();
    last_events_.push_back(std::move(event));
  }
}

nb::list MonitorObject::take_events() {
  nb::list list;
  const std::shared_ptr<Monitor> monitor = open_monitor();
  for (const MonitorEvent& event : monitor != nullptr ? monitor->take_events() : std::exchange(last_events_, {})) {
    list.append(dict_of(event));
  }
  return list;
}

void MonitorObject::clear() {
  last_values_.clear();
  last_events_.clear();
  if (const std::shared_ptr<Monitor> monitor = open_monitor()) monitor->clear();
}

}  // namespace headrace::python
