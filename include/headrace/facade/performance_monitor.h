// A training run's own figures by step, its event files, and a report of them, under the name of the Python package
// performance_optimization.
#pragma once

#include <headrace/monitor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace headrace::facade {

enum class ReportForm { text, json };

// Takes a run's metrics by step, writes them as TensorBoard events into log_dir, and adds its own:
// performance/step_time (seconds) and performance/memory_{current,peak,mean}_bytes, resident between two steps.
//
//   hr::facade::PerformanceMonitor monitor;
//   monitor.record_metrics(100, {{"training_loss", 0.5}, {"validation_accuracy", 0.9}});
//   monitor.log_performance_report();
//
// The time of a step is the metric "step_time", in seconds, where that is given; else the time since the record before,
// divided by the steps between the two. Writing is on a headrace::Monitor's own thread and ends no run: what cannot be
// written, the summary's sinks tell. For one thread at a time.
class PerformanceMonitor {
 public:
  using Metrics = std::map<std::string, double>;
  using Clock = std::function<double()>;  // Seconds, for tests.

  // log_dir: made at the first record; empty: no event files. Of `options` all but tensorboard counts.
  explicit PerformanceMonitor(std::filesystem::path log_dir = "runs/performance_optimization",
                              MonitorOptions options = {}, Clock clock = {});
  ~PerformanceMonitor();
  PerformanceMonitor(PerformanceMonitor&& other) noexcept;

  // Of a step that was recorded before they join what it has. Error{invalid_argument}: the step is below 0, a name is
  // empty, and of the first record what Monitor says of its options.
  void record_metrics(std::int64_t step, const Metrics& metrics);
  // All that was recorded of this step, with what this object added; empty: nothing was. Of the newest 100,000 steps.
  Metrics get_metrics(std::int64_t step) const;

  // Seconds; nullopt: no step was timed yet.
  std::optional<double> average_step_time() const;
  // JSON on several lines; what is null nobody could measure. average_step_time; total_steps in total_time seconds;
  // step_time: of the newest 1,000 mean, p50, p95, p99, min, max, slope (seconds a step) and slowdown, {"found_at",
  // "ratio"} where steps have come to take longer for good; memory: resident bytes current, peak and mean; gpu:
  // available, reason, and by number its devices' figures; recorded, dropped, not_finite, sinks: MonitorStatus'.
  std::string get_performance_summary() const;
  // The summary as a text of some lines or as JSON on one, which is also printed on stderr.
  std::string log_performance_report(ReportForm form = ReportForm::text) const;

  void clear_metrics();  // Forgets steps, times and memory; event files and their counts stay.
  bool flush();          // As Monitor's.
  void close();          // Writes what is left; the summary stays, and a further record begins a new event file.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::facade
