#include <headrace/facade/performance_monitor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "facade/performance_report.h"
#include "insight/monitor/metric_series.h"
#include "insight/monitor/step_memory.h"

namespace headrace::facade {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kStepTime = "step_time";
constexpr std::size_t kStepsMax = 100'000;

struct Moment {
  std::int64_t step = 0;
  double at_s = 0;
};

ordered_json json_of(const SeriesStatistics& figures) {
  ordered_json slowdown = nullptr;
  if (figures.slowdown) slowdown = {{"found_at", figures.slowdown->found_at}, {"ratio", figures.slowdown->ratio}};
  return {{"mean", figures.rolling_mean}, {"p50", figures.p50},     {"p95", figures.p95},     {"p99", figures.p99},
          {"min", figures.minimum},       {"max", figures.maximum}, {"slope", figures.slope}, {"slowdown", slowdown}};
}

ordered_json json_of(const std::vector<SinkStatus>& sinks) {
  ordered_json list = ordered_json::array();
  for (const SinkStatus& sink : sinks) {
    list.push_back({{"name", sink.applied.key},
                    {"requested", sink.applied.requested},
                    {"applied", sink.applied.applied},
                    {"reason", sink.applied.reason},
                    {"records", sink.records},
                    {"events", sink.events},
                    {"lost", sink.lost}});
  }
  return list;
}

// Of the monitor's newest values "gpu.0.utilization" and so on.
ordered_json gpu_figures(const std::vector<MetricValue>& latest, const std::string& reason) {
  constexpr std::string_view kPrefix = "gpu.";
  ordered_json devices = ordered_json::object();
  for (const MetricValue& metric : latest) {
    if (!metric.name.starts_with(kPrefix)) continue;
    const std::string rest = metric.name.substr(kPrefix.size());
    const std::size_t dot = rest.find('.');
    if (dot != std::string::npos) devices[rest.substr(0, dot)][rest.substr(dot + 1)] = metric.value;
  }
  const bool is_there = !devices.empty();
  const std::string why = reason.empty() ? "unavailable: not read yet" : reason;
  return {{"available", is_there}, {"reason", is_there ? "" : why}, {"devices", std::move(devices)}};
}

MonitorStatus no_status() {
  MonitorStatus status;
  status.gpu = "unavailable: nothing was recorded";
  return status;
}

void check(std::int64_t step, const PerformanceMonitor::Metrics& metrics) {
  if (step < 0) {
    fail(ErrorCode::invalid_argument, "facade: record_metrics: step: wanted a whole number of at least 0, found {}",
         step);
  }
  if (metrics.contains("")) {
    fail(ErrorCode::invalid_argument, "facade: record_metrics: metrics: wanted names, found an empty one");
  }
}

}  // namespace

struct PerformanceMonitor::Impl {
  std::filesystem::path log_dir;
  MonitorOptions options;
  Clock clock;
  std::unique_ptr<Monitor> monitor{};  // Null before the first record, and once it is closed.
  MonitorStatus last_status = no_status();
  std::unique_ptr<StepMemoryReader> memory_reader{};

  std::map<std::int64_t, Metrics> history{};
  std::deque<std::int64_t> order{};  // Of the history, the oldest first.
  std::optional<MetricSeries> step_times{std::in_place};
  std::int64_t total_steps = 0;
  double total_time = 0;
  std::optional<Moment> last{};
  std::optional<StepMemory> memory{};  // Of all steps so far.
  std::int64_t memory_steps = 0;

  void open() {
    if (monitor != nullptr) return;
    MonitorOptions its = options;
    its.tensorboard = log_dir.string();
    monitor = std::make_unique<Monitor>(std::move(its));
    memory_reader = std::make_unique<StepMemoryReader>();
  }
  MonitorStatus status() const { return monitor != nullptr ? monitor->status() : last_status; }
  // nullopt: the first one, the same step again, a new run, or no duration.
  std::optional<double> step_seconds(std::int64_t step, const Metrics& metrics);
  std::optional<StepMemory> step_memory();
  void remember(std::int64_t step, const Metrics& metrics);
  void forget();
};

std::optional<double> PerformanceMonitor::Impl::step_seconds(std::int64_t step, const Metrics& metrics) {
  const double now = clock();
  const std::optional<Moment> before = std::exchange(last, Moment{step, now});
  std::int64_t steps = before ? step - before->step : 1;
  double seconds = 0;
  if (const auto given = metrics.find(std::string(kStepTime)); given != metrics.end()) {
    seconds = given->second;
    steps = 1;
  } else if (!before || steps <= 0) {
    return std::nullopt;
  } else {
    seconds = (now - before->at_s) / static_cast<double>(steps);
  }
  if (!(std::isfinite(seconds) && seconds >= 0)) return std::nullopt;
  total_steps += steps;
  total_time += seconds * static_cast<double>(steps);
  step_times->add(seconds);
  return seconds;
}

std::optional<StepMemory> PerformanceMonitor::Impl::step_memory() {
  const std::optional<StepMemory> found = memory_reader->take();
  if (!found) return std::nullopt;
  const StepMemory before = memory.value_or(StepMemory{});
  ++memory_steps;
  memory = {.current = found->current,
            .peak = std::max(before.peak, found->peak),
            .mean = before.mean + (found->mean - before.mean) / static_cast<double>(memory_steps)};
  return found;
}

void PerformanceMonitor::Impl::remember(std::int64_t step, const Metrics& metrics) {
  const auto [place, is_new] = history.try_emplace(step);
  for (const auto& [name, value] : metrics) place->second.insert_or_assign(name, value);
  if (!is_new) return;
  order.push_back(step);
  if (order.size() <= kStepsMax) return;
  history.erase(order.front());
  order.pop_front();
}

void PerformanceMonitor::Impl::forget() {
  history.clear();
  order.clear();
  step_times.emplace();
  total_steps = 0;
  total_time = 0;
  last.reset();
  memory.reset();
  memory_steps = 0;
}

PerformanceMonitor::PerformanceMonitor(std::filesystem::path log_dir, MonitorOptions options, Clock clock)
    : impl_(new Impl{std::move(log_dir), std::move(options), std::move(clock)}) {
  if (!impl_->clock) impl_->clock = [] { return 1e-9 * static_cast<double>(monotonic_ns()); };
}

PerformanceMonitor::~PerformanceMonitor() = default;
PerformanceMonitor::PerformanceMonitor(PerformanceMonitor&& other) noexcept = default;

void PerformanceMonitor::record_metrics(std::int64_t step, const Metrics& metrics) {
  check(step, metrics);
  impl_->open();
  Metrics all = metrics;
  if (const auto seconds = impl_->step_seconds(step, metrics)) all["performance/step_time"] = *seconds;
  if (const auto memory = impl_->step_memory()) {
    all["performance/memory_current_bytes"] = static_cast<double>(memory->current);
    all["performance/memory_peak_bytes"] = static_cast<double>(memory->peak);
    all["performance/memory_mean_bytes"] = memory->mean;
  }
  std::vector<MetricValue> values;
  for (const auto& [name, value] : all) values.push_back({name, value});
  impl_->monitor->record(step, std::move(values));
  impl_->remember(step, all);
}

PerformanceMonitor::Metrics PerformanceMonitor::get_metrics(std::int64_t step) const {
  const auto found = impl_->history.find(step);
  return found == impl_->history.end() ? Metrics{} : found->second;
}

std::optional<double> PerformanceMonitor::average_step_time() const {
  if (impl_->total_steps == 0) return std::nullopt;
  return impl_->total_time / static_cast<double>(impl_->total_steps);
}

std::string PerformanceMonitor::get_performance_summary() const {
  ordered_json json{{"average_step_time", nullptr},
                    {"total_steps", impl_->total_steps},
                    {"total_time", impl_->total_time},
                    {"step_time", nullptr},
                    {"memory", nullptr}};
  if (const auto average = average_step_time()) json["average_step_time"] = *average;
  if (const auto figures = impl_->step_times->statistics()) json["step_time"] = json_of(*figures);
  if (const auto& memory = impl_->memory) {
    json["memory"] = {{"current", memory->current}, {"peak", memory->peak}, {"mean", memory->mean}};
  }
  const MonitorStatus status = impl_->status();
  json["gpu"] =
      gpu_figures(impl_->monitor != nullptr ? impl_->monitor->latest() : std::vector<MetricValue>{}, status.gpu);
  json["recorded"] = status.recorded;
  json["dropped"] = status.dropped;
  json["not_finite"] = status.not_finite;
  json["sinks"] = json_of(status.sinks);
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);  // A path need not be UTF-8.
}

std::string PerformanceMonitor::log_performance_report(ReportForm form) const {
  const ordered_json summary = ordered_json::parse(get_performance_summary());
  std::string report = form == ReportForm::json ? summary.dump() : performance_report(summary);
  std::fprintf(stderr, "%s\n", report.c_str());
  return report;
}

void PerformanceMonitor::clear_metrics() {
  impl_->forget();
  if (impl_->monitor != nullptr) impl_->monitor->clear();
}

bool PerformanceMonitor::flush() {
  return impl_->monitor == nullptr || impl_->monitor->flush();
}

void PerformanceMonitor::close() {
  if (impl_->monitor == nullptr) return;
  impl_->monitor->flush();
  impl_->last_status = impl_->monitor->status();
  impl_->monitor.reset();
  impl_->memory_reader.reset();
}

}  // namespace headrace::facade
