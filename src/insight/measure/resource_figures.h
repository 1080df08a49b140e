// The figures that a verdict over resources needs, recorded while a job runs.
#pragma once

#include <headrace/resource_verdict.h>
#include <headrace/time_split.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/hardware/thread_usage.h"
#include "insight/measure/measure.h"

namespace headrace {

// What loading a batch took between two readings; nullopt: one of them is unavailable, or nothing was loaded.
std::optional<LoadingStages> loading_between(const std::optional<LoadingTotals>& before,
                                             const std::optional<LoadingTotals>& after);
// Puts in what the machine's peaks and a step's work say, of which there are `steps`; nullopt: unavailable, with the
// reason where there is one.
void add_machine(ResourceFigures& figures, const std::optional<MachinePeaks>& peaks, const StepWork& work,
                 std::int64_t steps);

// From construction to end(), on the thread that runs the job, whose set_counts_use() is on for as long; where
// something is thrown before end(), it stays on.
class FigureRecorder {
 public:
  explicit FigureRecorder(MeasurableJob& job);
  FigureRecorder(const FigureRecorder&) = delete;
  FigureRecorder& operator=(const FigureRecorder&) = delete;

  // Of the steps run since construction, which are those of `split`. Experiments are not in it. Counts the work of one
  // step and, the first time on a machine, measures its peaks. Call once.
  ResourceFigures end(const TimeSplit& split, int compute_threads);

 private:
  MeasurableJob& job_;
  std::optional<LoadingTotals> loading_;
  std::optional<double> garbage_s_, stall_s_;
  std::vector<ThreadDelay> delays_;
};

}  // namespace headrace
