#include <c10/core/Device.h>
#include <headrace/error.h>
#include <headrace/facade/performance_profiler.h>
#include <headrace/facade/profile_operation.h>
#include <headrace/trace.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/diagnose/json.h"
#include "torch/device/accelerator.h"
#include "torch/tensor/thread_memory.h"

namespace headrace::facade {
namespace {

constexpr std::size_t kOperationsMax = 65536;
constexpr double kGb = 1e9;
constexpr const char *kSpeed = "training_speed", *kMemory = "memory_usage", *kLoading = "data_loading_time",
                     *kForward = "forward_pass_time", *kBackward = "backward_pass_time", *kOptimizer = "optimizer_time";

using Metrics = std::map<std::string, std::vector<double>>;

Metrics no_metrics() {
  return {{kSpeed, {}}, {kMemory, {}}, {kLoading, {}}, {kForward, {}}, {kBackward, {}}, {kOptimizer, {}}};
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : sum_of(values) / static_cast<double>(values.size());
}

double largest_of(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

struct Ended {
  const SpanName* name = nullptr;
  std::uint32_t thread = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
  bool failed = false;
  ScopeMemory memory{};
};

// An outer one before those within it. Of two that began and ended at once the outer one was the later to be told.
std::vector<Ended> in_order(const std::deque<Ended>& ended) {
  std::vector<Ended> all(ended.rbegin(), ended.rend());
  std::stable_sort(all.begin(), all.end(), [](const Ended& a, const Ended& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return all;
}

TraceRecord record_of(const std::vector<Ended>& ended) {
  TraceRecord record;
  std::unordered_map<const SpanName*, std::uint32_t> names;
  std::uint32_t threads = 0;
  for (const Ended& one : ended) {
    const auto [place, is_new] = names.try_emplace(one.name, static_cast<std::uint32_t>(record.names.size()));
    if (is_new) record.names.push_back({one.name->text, one.name->category});
    threads = std::max(threads, one.thread + 1);
    record.events.push_back({place->second, one.thread, one.begin_ns, one.end_ns, 0});
  }
  record.threads.resize(threads);
  return record;
}

using Within = std::vector<std::vector<std::size_t>>;  // By operation, and last of none, those that lie in it.

Within nesting_of(const std::vector<Ended>& ended) {
  Within within(ended.size() + 1);
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> open;  // By thread, the innermost last.
  for (std::size_t i = 0; i < ended.size(); ++i) {
    std::vector<std::size_t>& stack = open[ended[i].thread];
    while (!stack.empty() && ended[stack.back()].end_ns < ended[i].end_ns) stack.pop_back();
    within[stack.empty() ? ended.size() : stack.back()].push_back(i);
    stack.push_back(i);
  }
  return within;
}

std::vector<Operation> operations_in(const std::vector<Ended>& ended, const Within& within, std::size_t parent) {
  std::vector<Operation> operations;
  for (const std::size_t i : within[parent]) {
    operations.push_back({ended[i].name->text, 1e-9 * static_cast<double>(ended[i].end_ns - ended[i].begin_ns),
                          ended[i].failed, operations_in(ended, within, i)});
  }
  return operations;
}

void take_larger(std::optional<std::int64_t>& most, const std::optional<std::int64_t>& value) {
  if (value && (!most || *most < *value)) most = value;
}

nlohmann::ordered_json json_of(const ScopeMemory& memory) {
  nlohmann::ordered_json json{{"net_bytes", nullptr}, {"peak_bytes", nullptr}};
  if (memory.net_bytes) json["net_bytes"] = *memory.net_bytes;
  if (memory.peak_bytes) json["peak_bytes"] = *memory.peak_bytes;
  return json;
}

void check_seconds(std::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  fail(ErrorCode::invalid_argument, "facade: record_batch_metrics: {}: wanted seconds, at least 0, found {}", name,
       value);
}

// That tensors hold on the first CUDA device; nullopt: there is none. Opens CUDA's half of the engine, once a process.
std::optional<std::int64_t> cuda_allocated() {
  std::string reason;
  const Accelerator* const cuda = accelerator_of(c10::Device(c10::kCUDA, 0), reason);
  const std::optional<DeviceMemory> memory = cuda == nullptr ? std::nullopt : cuda->memory();
  return memory ? std::optional(memory->all.allocated.now) : std::nullopt;
}

}  // namespace

std::string ProfilingSummary::to_json() const {
  nlohmann::ordered_json json = headrace::to_json(times);
  json["memory"] = nlohmann::ordered_json::object();
  for (const auto& [name, of_scope] : memory) json["memory"][name] = json_of(of_scope);
  json["memory_reason"] = memory_reason;
  json["dropped_operations"] = dropped_operations;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string PerformanceReport::to_json() const {
  return nlohmann::ordered_json{{"total_training_time", total_training_time},
                                {"average_training_speed", average_training_speed},
                                {"peak_training_speed", peak_training_speed},
                                {"average_memory_usage", average_memory_usage},
                                {"peak_memory_usage", peak_memory_usage},
                                {"time_breakdown",
                                 {{"data_loading", time_breakdown.data_loading},
                                  {"forward_pass", time_breakdown.forward_pass},
                                  {"backward_pass", time_breakdown.backward_pass},
                                  {"optimizer", time_breakdown.optimizer}}},
                                {"recorded_batches", recorded_batches},
                                {"memory_available", memory_available}}
      .dump(2);
}

struct PerformanceProfiler::Impl {
  bool enable_profiling, enable_memory_profiling;
  Clock clock;
  mutable std::mutex mutex{};  // Guards the four below.
  std::deque<Ended> ended{};
  std::int64_t recorded = 0;
  std::unordered_map<std::thread::id, std::uint32_t> threads{};
  std::string memory_reason{};
  Metrics metrics = no_metrics();
  std::optional<double> batch_start{};
  double total_time = 0;

  void take(Ended one) {
    const std::lock_guard lock(mutex);
    one.thread =
        threads.try_emplace(std::this_thread::get_id(), static_cast<std::uint32_t>(threads.size())).first->second;
    ended.push_back(one);
    if (ended.size() > kOperationsMax) ended.pop_front();
    ++recorded;
  }
  // Null, and why in memory_reason: it cannot be had.
  std::unique_ptr<MemoryScope> memory_scope() {
    if (!enable_memory_profiling) return nullptr;
    try {
      return std::make_unique<MemoryScope>();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      const std::lock_guard lock(mutex);
      memory_reason = error.what();
      return nullptr;
    }
  }
};

struct PerformanceProfiler::Scope::Open {
  Impl& profiler;
  const SpanName& name;
  std::unique_ptr<MemoryScope> memory = profiler.memory_scope();
  Span span{name};
  int exceptions = std::uncaught_exceptions();
  std::int64_t begin_ns = monotonic_ns();

  Open(Impl& its_profiler, const SpanName& its_name) : profiler(its_profiler), name(its_name) {}
};

PerformanceProfiler::Scope::Scope(std::unique_ptr<Open> open) : open_(std::move(open)) {}

PerformanceProfiler::Scope::~Scope() {
  if (open_ == nullptr) return;
  Ended one{.name = &open_->name, .begin_ns = open_->begin_ns, .end_ns = std::max(monotonic_ns(), open_->begin_ns + 1)};
  one.failed = std::uncaught_exceptions() > open_->exceptions;
  if (open_->memory != nullptr) one.memory = {open_->memory->net_bytes(), open_->memory->peak_bytes()};
  open_->profiler.take(one);
}

PerformanceProfiler::PerformanceProfiler(bool enable_profiling, bool enable_memory_profiling, Clock clock)
    : impl_(new Impl{enable_profiling, enable_memory_profiling, std::move(clock)}) {
  if (!impl_->clock) impl_->clock = [] { return 1e-9 * static_cast<double>(monotonic_ns()); };
  if (!enable_memory_profiling) impl_->memory_reason = "enable_memory_profiling is off";
}

PerformanceProfiler::~PerformanceProfiler() = default;
PerformanceProfiler::PerformanceProfiler(PerformanceProfiler&& other) noexcept = default;

PerformanceProfiler::Scope PerformanceProfiler::profile(const std::string& name) {
  if (!impl_->enable_profiling) return Scope(nullptr);
  return Scope(std::make_unique<Scope::Open>(*impl_, operation_name(name)));
}

ProfilingSummary PerformanceProfiler::get_profile_summary() const {
  const std::lock_guard lock(impl_->mutex);
  const std::vector<Ended> ended = in_order(impl_->ended);
  ProfilingSummary summary{.times = headrace::get_profile_summary(record_of(ended)),
                           .memory_reason = impl_->memory_reason,
                           .dropped_operations = impl_->recorded - static_cast<std::int64_t>(ended.size())};
  for (const Ended& one : ended) {
    ScopeMemory& of_name = summary.memory[one.name->text];
    take_larger(of_name.net_bytes, one.memory.net_bytes);
    take_larger(of_name.peak_bytes, one.memory.peak_bytes);
  }
  return summary;
}

std::vector<Operation> PerformanceProfiler::tree() const {
  const std::lock_guard lock(impl_->mutex);
  const std::vector<Ended> ended = in_order(impl_->ended);
  return operations_in(ended, nesting_of(ended), ended.size());
}

void PerformanceProfiler::start_batch_timer() {
  impl_->batch_start = impl_->clock();
}

void PerformanceProfiler::record_batch_metrics(std::int64_t batch_size, double forward_time, double backward_time,
                                               double optimizer_time) {
  if (!impl_->batch_start) {
    fail(ErrorCode::invalid_argument,
         "facade: record_batch_metrics: wanted start_batch_timer() before each batch, found none since the last one");
  }
  if (batch_size < 1) {
    fail(ErrorCode::invalid_argument, "facade: record_batch_metrics: batch_size: wanted at least 1, found {}",
         batch_size);
  }
  check_seconds("forward_time", forward_time);
  check_seconds("backward_time", backward_time);
  check_seconds("optimizer_time", optimizer_time);
  const double seconds = impl_->clock() - *impl_->batch_start;
  if (!(seconds > 0)) {
    fail(ErrorCode::invalid_argument, "facade: record_batch_metrics: wanted a batch that takes time, found {} s",
         seconds);
  }
  impl_->batch_start.reset();
  impl_->total_time += seconds;
  impl_->metrics[kSpeed].push_back(static_cast<double>(batch_size) / seconds);
  impl_->metrics[kLoading].push_back(std::max(seconds - forward_time - backward_time - optimizer_time, 0.0));
  impl_->metrics[kForward].push_back(forward_time);
  impl_->metrics[kBackward].push_back(backward_time);
  impl_->metrics[kOptimizer].push_back(optimizer_time);
  if (const auto memory = cuda_allocated()) impl_->metrics[kMemory].push_back(static_cast<double>(*memory) / kGb);
}

void PerformanceProfiler::take_metrics(const TimeSplit& split, std::int64_t samples_per_step,
                                       const std::vector<std::int64_t>& memory_bytes) {
  const nlohmann::ordered_json series = metric_series(split, samples_per_step, memory_bytes);
  for (auto& [name, values] : impl_->metrics) {
    const nlohmann::ordered_json& found = series.at(name).at("values");
    if (found.is_null()) continue;
    const auto more = found.get<std::vector<double>>();
    values.insert(values.end(), more.begin(), more.end());
    if (name != kSpeed && name != kMemory) impl_->total_time += sum_of(more);
  }
}

const std::map<std::string, std::vector<double>>& PerformanceProfiler::metrics() const {
  return impl_->metrics;
}

PerformanceReport PerformanceProfiler::get_performance_report() const {
  const Metrics& metrics = impl_->metrics;
  const std::vector<double>&speed = metrics.at(kSpeed), &memory = metrics.at(kMemory);
  return {.total_training_time = impl_->total_time,
          .average_training_speed = mean_of(speed),
          .peak_training_speed = largest_of(speed),
          .average_memory_usage = mean_of(memory),
          .peak_memory_usage = largest_of(memory),
          .time_breakdown = {.data_loading = mean_of(metrics.at(kLoading)),
                             .forward_pass = mean_of(metrics.at(kForward)),
                             .backward_pass = mean_of(metrics.at(kBackward)),
                             .optimizer = mean_of(metrics.at(kOptimizer))},
          .recorded_batches = static_cast<std::int64_t>(speed.size()),
          .memory_available = !memory.empty()};
}

std::vector<Finding> PerformanceProfiler::identify_bottlenecks(const FindingThresholds& thresholds) const {
  const PerformanceReport report = get_performance_report();
  if (report.recorded_batches == 0) return {};
  const PerformanceReport::Breakdown& parts = report.time_breakdown;
  BottleneckInput input{.batches = 1,
                        .data_loading_s = parts.data_loading,
                        .compute_s = parts.forward_pass + parts.backward_pass + parts.optimizer,
                        .speeds = impl_->metrics.at(kSpeed),
                        .thresholds = thresholds};
  if (report.memory_available) input.mean_memory = std::llround(kGb * report.average_memory_usage);
  return headrace::identify_bottlenecks(input);
}

void PerformanceProfiler::clear() {
  const std::lock_guard lock(impl_->mutex);
  impl_->ended.clear();
  impl_->recorded = 0;
  impl_->metrics = no_metrics();
  impl_->batch_start.reset();
  impl_->total_time = 0;
}

}  // namespace headrace::facade
