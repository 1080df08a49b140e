// Where a monitor's records go: files that grow, a listener, a collector. Formats are insight/export's.
#pragma once

#include <headrace/monitor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "insight/export/metric.h"
#include "insight/export/metric_log.h"
#include "insight/monitor/distributions.h"
#include "insight/monitor/http.h"

namespace headrace {

// Of the files: Error{io} from opening, which names the file. Each write() ends with the bytes in the kernel, so that a
// killed process loses nothing of it; they are on the disk when the sink is closed. What a full disk does not take is
// lost, and the next records are tried again. Records of no step are of the newest step before them.

// Event files for TensorBoard, a new one in `folder`, which is made if need be. `histograms` are patterns of metrics
// whose distributions are written, too (distributions.h), whenever one has a tenth more values.
std::unique_ptr<MonitorSink> open_tensorboard(const std::filesystem::path& folder,
                                              std::vector<std::string> histograms = {});
// A line a value, appended.
std::unique_ptr<MonitorSink> open_metric_log(const std::filesystem::path& path, MetricLogForm form);
// event_json() of each event, a line appended; no record. Error{corrupt_data}: the file is something else.
std::unique_ptr<MonitorSink> open_event_log(const std::filesystem::path& path);
// One POST of the newest value of each name a write(), which the collector answers within 2 s. A collector that is not
// there loses these records and is asked again with the next ones, after a pause that doubles up to 30 s. Distributions
// of what `histograms` match count on meanwhile, and go with each POST.
std::unique_ptr<MonitorSink> open_otlp(const HostPort& collector, std::vector<std::string> histograms = {});

// What a monitor tells of a sink of its own, in force or off: "setting" of the key "monitor.csv" whose requested is
// what is applied, as of a listener the port; and "sink", a warning.
MonitorEvent opened_sink(const Applied& sink);
MonitorEvent failed_sink(const Applied& sink);

// The newest value of each name, and distributions of what `histograms` match. Any thread.
class NewestValues {
 public:
  explicit NewestValues(std::vector<std::string> histograms = {}) : distributions_(std::move(histograms)) {}
  static constexpr std::size_t kNamesMax = 10'000;  // New names beyond are left out.

  void take(std::span<const MonitorRecord> records);
  std::vector<MetricValue> values() const;    // By name.
  std::vector<Metric> distributions() const;  // The same.
  void clear();

 private:
  mutable std::mutex mutex_;  // Guards what follows.
  std::map<std::string, double> values_;
  Distributions distributions_;
};

// Serves Prometheus' text of `newest` at /metrics: values as gauges, distributions as histograms. Of two names that
// become one in it the first is there. Error{io}: the port is in use. `newest` outlives it.
std::unique_ptr<HttpListener> serve_prometheus(const HostPort& address, const NewestValues& newest);

}  // namespace headrace
