#include "insight/measure/experiments.h"

#include <headrace/trace.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "core/base/middle.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

constexpr int kPairs = 7;
constexpr std::int64_t kBlockStepsMin = 3;
constexpr std::int64_t kBlocksOfSplit = 8;  // A block is so small a part of the steps that were traced.
constexpr double kSpreadMax = 0.3;          // Of the lower one of two ratios, or of kSmall where that is less.
constexpr double kSmall = 0.5;
constexpr double kWaitMin = 0.02;  // Of a step: with less data wait, compute is not put to sleep.

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double block_seconds(MeasurableJob& job, bool free_data, std::int64_t steps) {
  job.set_free_data(free_data);
  job.run(1);
  return sum(job.run(steps));
}

TimeSplit traced(MeasurableJob& job, std::int64_t steps) {
  Trace trace;
  job.run(steps);
  return split_time(trace.stop());
}

// Seconds of the steps but for their data wait, while the training thread loads its batches by itself: nothing then
// takes cores from compute.
double undisturbed_seconds(MeasurableJob& job, std::int64_t steps) {
  job.set_free_data(false);
  job.set_loads_aside(false);
  job.run(1);
  const TimeSplit split = traced(job, steps);
  job.set_loads_aside(true);
  return split.total_s - split.data_wait_s;
}

// Seconds of data wait while a sleep of `compute_s` stands for each step; nullopt: the job cannot.
std::optional<double> idle_wait_seconds(MeasurableJob& job, double compute_s, std::int64_t steps) {
  job.set_free_data(false);
  if (!job.set_idle_compute(compute_s)) return std::nullopt;
  job.run(1);
  const TimeSplit split = traced(job, steps);
  job.set_idle_compute(0);
  return split.data_wait_s;
}

// Of pairs of blocks; nullopt when they, one outlier on each side apart, differ by more than kSpreadMax: this machine
// is too busy now to tell.
std::optional<std::vector<double>> steady(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  if (ratios.size() < 4) return std::nullopt;
  if (ratios[ratios.size() - 2] - ratios[1] > kSpreadMax * std::max(ratios[1], kSmall)) return std::nullopt;
  return ratios;
}

// Of step_s, in seconds.
std::optional<StepExperiments::Figure> figure_of(const std::vector<double>& ratios, double step_s) {
  const auto known = steady(ratios);
  if (!known) return std::nullopt;
  const Estimate interval = estimate_middle(*known, kTailError, kTailError);
  return StepExperiments::Figure{step_s * middle_of(*known), step_s * std::max(0.0, interval.low),
                                 step_s * interval.high};
}

struct Blocks {
  std::vector<double> free_data, undisturbed, idle_wait;  // Over the block as it is.
};

Blocks run_blocks(MeasurableJob& job, double compute_s, std::int64_t steps, bool loads_aside, bool idles) {
  Blocks blocks;
  for (int pair = 0; pair < kPairs; ++pair) {
    const bool free_first = pair % 2 == 0;
    const double first = block_seconds(job, free_first, steps), second = block_seconds(job, !free_first, steps);
    const double whole = free_first ? second : first;
    blocks.free_data.push_back((free_first ? first : second) / whole);
    if (loads_aside) blocks.undisturbed.push_back(undisturbed_seconds(job, steps) / whole);
    if (!idles) continue;
    if (const auto wait = idle_wait_seconds(job, compute_s, steps)) blocks.idle_wait.push_back(*wait / whole);
  }
  job.set_free_data(false);
  return blocks;
}

}  // namespace

StepExperiments run_experiments(MeasurableJob& job, const TimeSplit& split, double seconds_max) {
  const auto steps = static_cast<double>(split.steps);
  const double step_s = split.total_s / steps, wait_s = split.data_wait_s / steps;
  const bool loads_aside = job.loader_work().has_value();
  const bool idles = wait_s > kWaitMin * step_s;
  const int kinds = 2 + (loads_aside ? 1 : 0) + (idles ? 1 : 0);
  const double block_max = seconds_max / (kinds * kPairs * step_s) - 1;  // One step of each is unmeasured.
  if (block_max < static_cast<double>(kBlockStepsMin)) return {};
  const auto wanted = static_cast<double>(std::max(kBlockStepsMin, split.steps / kBlocksOfSplit));
  const auto block = static_cast<std::int64_t>(std::min(wanted, block_max));
  const Blocks blocks = run_blocks(job, step_s - wait_s, block, loads_aside, idles);
  StepExperiments found;
  found.free_data = figure_of(blocks.free_data, step_s);
  if (const auto undisturbed = steady(blocks.undisturbed)) found.undisturbed_compute = step_s * middle_of(*undisturbed);
  // Waits are small beside the block that they are compared with: their ratios may differ by more.
  if (!blocks.idle_wait.empty()) found.idle_compute_wait = step_s * middle_of(blocks.idle_wait);
  return found;
}

}  // namespace headrace
