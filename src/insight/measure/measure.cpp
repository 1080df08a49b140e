#include "insight/measure/measure.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "core/base/middle.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

constexpr std::int64_t kWarmupSteps = 3;
constexpr int kFreeDataPairs = 7;
constexpr std::int64_t kBlockStepsMin = 3;
constexpr double kSpreadMax = 1.3;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double block_seconds(MeasurableJob& job, bool free_data, std::int64_t steps) {
  job.set_free_data(free_data);
  job.run(1);
  return sum(job.run(steps));
}

// Seconds of the steps but for their data wait, while the training thread loads its batches by itself: nothing then
// takes cores from compute.
double undisturbed_seconds(MeasurableJob& job, std::int64_t steps) {
  job.set_free_data(false);
  job.set_loads_aside(false);
  job.run(1);
  Trace trace;
  job.run(steps);
  const TimeSplit split = split_time(trace.stop());
  job.set_loads_aside(true);
  return split.total_s - split.data_wait_s;
}

// Of pairs of blocks; nullopt when they, one outlier on each side apart, differ by more than kSpreadMax: this machine
// is too busy now to tell.
std::optional<double> median_of_pairs(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  if (ratios[ratios.size() - 2] > ratios[1] * kSpreadMax) return std::nullopt;
  return middle_of(ratios);
}

// Step times over that of the step with the loader as it is.
struct StepRatios {
  std::optional<double> free_data;
  std::optional<double> undisturbed;  // Without the data wait; nullopt also when no worker loads anyway.
};

// Blocks of each kind next to each other, taking turns in going first.
StepRatios step_ratios(MeasurableJob& job, std::int64_t steps) {
  const bool loads_aside = job.loader_work().has_value();
  std::vector<double> free_data, undisturbed;
  for (int pair = 0; pair < kFreeDataPairs; ++pair) {
    const bool free_first = pair % 2 == 0;
    const double first = block_seconds(job, free_first, steps), second = block_seconds(job, !free_first, steps);
    const double whole = free_first ? second : first;
    free_data.push_back((free_first ? first : second) / whole);
    if (loads_aside) undisturbed.push_back(undisturbed_seconds(job, steps) / whole);
  }
  job.set_free_data(false);
  return {median_of_pairs(free_data), loads_aside ? median_of_pairs(undisturbed) : std::nullopt};
}

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
  const double step_s = result.split.total_s / static_cast<double>(result.split.steps);
  const int kinds = work_after ? 3 : 2;
  const double block_max =
      options.blocks_s_max / (kinds * kFreeDataPairs * step_s) - 1;  // One step of each is unmeasured.
  if (block_max >= static_cast<double>(kBlockStepsMin)) {
    const auto block = static_cast<double>(std::max(kBlockStepsMin, steps / 8));
    const StepRatios ratios = step_ratios(job, static_cast<std::int64_t>(std::min(block, block_max)));
    if (ratios.free_data) input.free_data_step_s = step_s * *ratios.free_data;
    if (ratios.undisturbed) input.undisturbed_step_s = step_s * *ratios.undisturbed;
  }
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
