#include "assembly/measure.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tensor/compute.h"

namespace headrace {
namespace {

constexpr std::int64_t kWarmupSteps = 3;
constexpr int kFreeDataPairs = 7;
constexpr double kSpreadMax = 1.3;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double block_seconds(TrainingJob& job, bool free_data, std::int64_t steps) {
  job.set_free_data(free_data);
  job.run(1);
  return sum(job.run(steps));
}

// Seconds of the steps but for their data wait, while the training thread loads its batches by itself: nothing then
// takes cores from compute.
double undisturbed_seconds(TrainingJob& job, std::int64_t steps) {
  job.set_free_data(false);
  Loader& loader = job.training().loader();
  loader.set_threads(0);
  job.run(1);
  Trace trace;
  job.run(steps);
  const TimeSplit split = split_time(trace.stop());
  loader.set_threads(job.training().recipe().data.threads);
  return split.total_s - split.data_wait_s;
}

// Of pairs of blocks; nullopt when they, one outlier on each side apart, differ by more than kSpreadMax: this machine
// is too busy now to tell.
std::optional<double> median_of_pairs(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  if (ratios[ratios.size() - 2] > ratios[1] * kSpreadMax) return std::nullopt;
  return median(ratios);
}

// Step times over that of the step with the loader as it is.
struct StepRatios {
  std::optional<double> free_data;
  std::optional<double> undisturbed;  // Without the data wait; nullopt also when no loader thread works anyway.
};

// Blocks of each kind next to each other, taking turns in going first.
StepRatios step_ratios(TrainingJob& job, std::int64_t steps) {
  const bool loads_aside = job.training().recipe().data.threads > 0;
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

LoaderStatistics difference(const LoaderStatistics& after, const LoaderStatistics& before) {
  LoaderStatistics result = after;
  result.samples -= before.samples;
  result.batches -= before.batches;
  result.busy_ns -= before.busy_ns;
  result.wait_for_slot_ns -= before.wait_for_slot_ns;
  result.wait_for_batch_ns -= before.wait_for_batch_ns;
  return result;
}

}  // namespace

Measured measure(TrainingJob& job, const Machine& machine, std::int64_t steps) {
  job.run(kWarmupSteps);
  Measured result;
  Loader& loader = job.training().loader();
  const LoaderStatistics before = loader.statistics();
  const bool peak_known = reset_peak_memory();
  Trace trace;
  for (std::int64_t i = 0; i < steps; ++i) {
    job.run(1);
    if (const auto resident = resident_memory()) result.memory.push_back(*resident);
  }
  if (result.memory.size() != static_cast<std::size_t>(steps)) result.memory.clear();
  result.trace = trace.stop();
  if (peak_known) result.peak_memory = peak_memory();
  result.loader = difference(loader.statistics(), before);
  result.split = split_time(result.trace);

  DiagnosisInput input;
  input.split = result.split;
  input.samples_per_step = job.samples_per_step();
  if (const std::int64_t threads = job.training().recipe().data.threads; threads > 0) {
    input.loader_busy_s = static_cast<double>(result.loader.busy_ns) * 1e-9;
    input.loader_threads = static_cast<int>(threads);
  }  // Else the training thread loads, and its time is data wait already.
  input.compute_threads = static_cast<int>(compute_threads());
  input.cores = machine.cores_usable;
  input.peak_memory = result.peak_memory;
  if (!result.memory.empty()) {
    input.mean_memory = std::accumulate(result.memory.begin(), result.memory.end(), std::int64_t{0}) / steps;
  }
  const double step_s = result.split.total_s / static_cast<double>(result.split.steps);
  const StepRatios ratios = step_ratios(job, std::max<std::int64_t>(3, steps / 8));
  if (ratios.free_data) input.free_data_step_s = step_s * *ratios.free_data;
  if (ratios.undisturbed) input.undisturbed_step_s = step_s * *ratios.undisturbed;
  result.diagnosis = diagnose(input);
  return result;
}

}  // namespace headrace
