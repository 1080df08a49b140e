#include "insight/measure/measure.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "insight/diagnose/json.h"
#include "insight/measure/experiments.h"
#include "insight/measure/resource_figures.h"

namespace headrace {
namespace {

constexpr std::int64_t kWarmupSteps = 3;
// A step records some six spans of its own and some for each micro-batch; the rest is room for the loader's.
constexpr std::int64_t kEventsPerStep = 64;

}  // namespace

Job::SplitRun MeasurableJob::run_split(std::int64_t steps) {
  Trace trace{{.events_per_thread = std::max(TraceOptions{}.events_per_thread, kEventsPerStep * steps)}};
  SplitRun result{run(steps), std::nullopt};
  TimeSplit spans = split_time(trace.stop());
  if (spans.steps != steps) return result;  // A full ring lost some.
  const std::vector<double> moved = moved_data_wait();
  for (std::size_t i = 0; i < moved.size(); ++i) spans.parts[i].data_wait_s += moved[i];
  result.split = sum_steps(result.step_s, std::move(spans.parts));
  return result;
}

Measured measure(MeasurableJob& job, const Machine& machine, const MeasureOptions& options) {
  const std::int64_t steps = options.steps;
  job.run(kWarmupSteps);
  Measured result;
  const std::optional<LoaderWork> work_before = job.loader_work();
  FigureRecorder recorder{job};
  const bool peak_known = reset_peak_memory();
  Trace trace;
  for (std::int64_t i = 0; i < steps; ++i) {
    job.run(1);
    if (const auto resident = resident_memory()) result.memory.push_back(*resident);
  }
  if (result.memory.size() != static_cast<std::size_t>(steps)) result.memory.clear();
  result.trace = trace.stop();
  if (peak_known) result.peak_memory = peak_memory();
  const std::optional<LoaderWork> work_after = job.loader_work();
  result.split = split_time(result.trace);
  ResourceFigures figures = recorder.end(result.split, static_cast<int>(options.compute_threads));

  DiagnosisInput input;
  input.split = result.split;
  input.samples_per_step = job.samples_per_step();
  if (work_before && work_after) {
    input.loader_busy_s = work_after->busy_s - work_before->busy_s;
    input.num_workers = work_after->num_workers;
  }
  input.has_fused_optimizer = job.has_fused_optimizer();
  input.compute_threads = static_cast<int>(options.compute_threads);
  input.cores = machine.cores_usable;
  input.peak_memory = result.peak_memory;
  if (!result.memory.empty()) {
    input.mean_memory = std::accumulate(result.memory.begin(), result.memory.end(), std::int64_t{0}) / steps;
  }
  figures.experiments = run_experiments(job, result.split, options.blocks_s_max);
  if (const auto& free_data = figures.experiments.free_data) input.free_data_step_s = free_data->middle;
  input.undisturbed_step_s = figures.experiments.undisturbed_compute;
  input.resources = std::move(figures);
  result.diagnosis = diagnose(input);
  return result;
}

void add_measured(nlohmann::ordered_json& document, const Measured& before, const Report& report) {
  const auto split = [](const std::optional<TimeSplit>& known) {
    return known ? to_json(*known) : nlohmann::ordered_json(nullptr);
  };
  document["diagnosis"] = to_json(before.diagnosis);
  document["diagnosis"]["findings"] = to_json(advice_left(report));
  document["not_tried"] = nlohmann::ordered_json::array();
  for (const Report::NotTried& change : report.not_tried) {
    document["not_tried"].push_back({{"name", change.name}, {"key", change.key}, {"reason", change.reason}});
  }
  document["time_split"]["baseline"] = split(report.before);
  document["time_split"]["best"] = split(report.after);
  document["peak_memory_bytes"]["baseline"] =
      before.peak_memory ? nlohmann::ordered_json(*before.peak_memory) : nlohmann::ordered_json(nullptr);
}

}  // namespace headrace
