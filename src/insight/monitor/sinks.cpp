#include "insight/monitor/sinks.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/export/append_file.h"
#include "insight/export/metric.h"
#include "insight/export/otlp.h"
#include "insight/export/prometheus.h"
#include "insight/export/tensorboard.h"

namespace headrace {
namespace {

constexpr double kPauseMin = 1, kPauseMax = 30;  // Seconds.

Metric gauge(const std::string& name, double value) {
  Metric metric;
  metric.name = name;
  metric.kind = MetricKind::gauge;
  metric.value = value;
  return metric;
}

// Records of no step are told at the newest step.
class StepOf {
 public:
  MetricMoment moment(const MonitorRecord& record) {
    if (record.step >= 0) newest_ = record.step;
    MetricMoment result;
    result.wall_ns = record.wall_ns;
    result.step = newest_;
    return result;
  }

 private:
  std::int64_t newest_ = 0;
};

// At the end there is nobody left to tell: what was written before is in the kernel already.
template <class File>
void sync_at_end(File& file) noexcept {
  try {
    file.sync();
  } catch (const std::exception&) {
  }
}

// Of a TensorBoardWriter or a MetricLog.
template <class File>
class FileSink final : public MonitorSink {
 public:
  explicit FileSink(File file, std::vector<std::string> histograms = {})
      : file_(std::move(file)), distributions_(std::move(histograms)) {}
  ~FileSink() override { sync_at_end(file_); }

  // Gives the file all of the records and flushes it; where that fails, it has whole ones of before.
  Delivery write(std::span<const MonitorRecord> records) override {
    try {
      MetricMoment moment;
      for (const MonitorRecord& record : records) {
        moment = steps_.moment(record);
        distributions_.take(record);
        for (const MetricValue& value : record.metrics) file_.add(gauge(value.name, value.value), moment);
      }
      for (const Metric& grown : distributions_.grown()) file_.add(grown, moment);
      file_.flush();
      return {};
    } catch (const Error& error) {
      return {std::ssize(records), error.what()};
    }
  }

 private:
  File file_;
  StepOf steps_;
  Distributions distributions_;
};

class EventLog final : public MonitorSink {
 public:
  explicit EventLog(const std::filesystem::path& path)
      : file_(AppendFile::continue_lines(path, "{\"version\":1,\"event\":")) {}
  ~EventLog() override { sync_at_end(file_); }

  Delivery write(std::span<const MonitorRecord> /*records*/) override { return {}; }
  Delivery tell(const MonitorEvent& event) override {
    try {
      file_.add(event_json(event) + '\n');
      file_.flush();
      return {};
    } catch (const Error& error) {
      return {1, error.what()};
    }
  }

 private:
  AppendFile file_;
};

class OtlpSink final : public MonitorSink {
 public:
  OtlpSink(HostPort collector, std::vector<std::string> histograms)
      : collector_(std::move(collector)), distributions_(std::move(histograms)) {}

  Delivery write(std::span<const MonitorRecord> records) override {
    const auto count = std::ssize(records);
    for (const MonitorRecord& record : records) distributions_.take(record);
    if (seconds_since(failed_ns_) < pause_s_) return {count, reason_};
    std::map<std::string, double> newest;
    MetricMoment moment;
    for (const MonitorRecord& record : records) {
      moment = steps_.moment(record);
      for (const MetricValue& value : record.metrics) newest[value.name] = value.value;
    }
    std::vector<Metric> metrics = distributions_.metrics();
    for (const auto& [name, value] : newest) metrics.push_back(gauge(name, value));
    const std::string body = otlp_metrics_json(metrics, source_, moment.wall_ns);
    reason_ = post_http(collector_, "/v1/metrics", kOtlpContentType, body);
    if (reason_.empty()) {
      pause_s_ = 0;
      return {};
    }
    reason_ = fmt::format("{}: {}", collector_.text(), reason_);
    pause_s_ = std::clamp(2 * pause_s_, kPauseMin, kPauseMax);
    failed_ns_ = monotonic_ns();
    return {count, reason_};
  }

 private:
  const HostPort collector_;
  OtlpSource source_{};
  StepOf steps_;
  Distributions distributions_;
  std::string reason_;
  double pause_s_ = 0;
  std::int64_t failed_ns_ = 0;
};

// Values as gauges. Of two names that become one in the text the first is there.
std::string prometheus_text_of(const NewestValues& newest) {
  std::vector<Metric> metrics;
  for (const MetricValue& value : newest.values()) metrics.push_back(gauge(value.name, value.value));
  for (Metric& distribution : newest.distributions()) metrics.push_back(std::move(distribution));
  std::string text;
  std::set<std::string> taken;  // Of first lines, "# TYPE headrace_train_loss gauge", all but the kind: one a name.
  for (const Metric& metric : metrics) {
    const std::string one = prometheus_text(std::span(&metric, 1));
    const std::string first = one.substr(0, one.find('\n'));
    if (taken.insert(first.substr(0, first.rfind(' '))).second) text += one;
  }
  return text;
}

}  // namespace

std::unique_ptr<MonitorSink> open_tensorboard(const std::filesystem::path& folder,
                                              std::vector<std::string> histograms) {
  return std::make_unique<FileSink<TensorBoardWriter>>(TensorBoardWriter(folder), std::move(histograms));
}

std::unique_ptr<MonitorSink> open_metric_log(const std::filesystem::path& path, MetricLogForm form) {
  return std::make_unique<FileSink<MetricLog>>(MetricLog(path, form));
}

std::unique_ptr<MonitorSink> open_event_log(const std::filesystem::path& path) {
  return std::make_unique<EventLog>(path);
}

std::unique_ptr<MonitorSink> open_otlp(const HostPort& collector, std::vector<std::string> histograms) {
  return std::make_unique<OtlpSink>(collector, std::move(histograms));
}

MonitorEvent opened_sink(const Applied& sink) {
  return event_of(Applied{fmt::format("monitor.{}", sink.key), sink.applied, sink.applied, sink.reason});
}

MonitorEvent failed_sink(const Applied& sink) {
  MonitorEvent event = event_of(sink);
  event.level = EventLevel::warning;
  event.name = "sink";
  event.sentence = fmt::format("monitor: {}: {}; the run goes on", sink.key, sink.reason);
  return event;
}

void NewestValues::take(std::span<const MonitorRecord> records) {
  const std::lock_guard lock(mutex_);
  for (const MonitorRecord& record : records) {
    distributions_.take(record);
    for (const MetricValue& value : record.metrics) {
      const auto known = values_.find(value.name);
      if (known != values_.end()) {
        known->second = value.value;
      } else if (values_.size() < kNamesMax) {
        values_.emplace(value.name, value.value);
      }
    }
  }
}

std::vector<MetricValue> NewestValues::values() const {
  const std::lock_guard lock(mutex_);
  std::vector<MetricValue> result;
  result.reserve(values_.size());
  for (const auto& [name, value] : values_) result.push_back({name, value});
  return result;
}

std::vector<Metric> NewestValues::distributions() const {
  const std::lock_guard lock(mutex_);
  return distributions_.metrics();
}

void NewestValues::clear() {
  const std::lock_guard lock(mutex_);
  values_.clear();
  distributions_.clear();
}

std::unique_ptr<HttpListener> serve_prometheus(const HostPort& address, const NewestValues& newest) {
  return std::make_unique<HttpListener>(address, HttpListener::Page{"/metrics", std::string(kPrometheusContentType),
                                                                    [&newest] { return prometheus_text_of(newest); }});
}

}  // namespace headrace
