// What a training run shows while it goes on: a view in the terminal, and the sinks that [report] names.
#pragma once

#include <headrace/loader_statistics.h>
#include <headrace/monitor.h>
#include <headrace/trace.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/cli/console.h"
#include "engine/assembly/training.h"
#include "engine/verbs/train_history.h"
#include "torch/train/loop.h"

namespace headrace {

// Means over the newest steps; "other" is what no part of them covers. By name "time.<part>_s", seconds a step; empty:
// there is no whole step in the record, or rings have lost some.
std::map<std::string, double> split_figures(const TraceRecord& record);
// Of what a loader did between two looks: "loader.queue_depth", the mean of whole batches that waited when one was
// asked for, and since it was built "cache.hit_rate" and "cache.lookups". What nothing happened for is left out.
std::map<std::string, double> loader_figures(const LoaderStatistics& before, const LoaderStatistics& now);

// Owns the Trace of the run's steps and its Monitor; no other Trace exists meanwhile. None of them where neither a
// terminal or log shows progress nor a sink is asked for. For one thread.
//
// Figures are read a few times a second, and losses then alone: a step costs its spans, some 25 ns each.
class TrainProgress {
 public:
  // Tells the settings in force as events, those that the training decides once they are decided, and where the sinks
  // are to the console. Error{invalid_argument}: an address in [report] is none. A sink that cannot be opened is a
  // warning.
  TrainProgress(Console& console, Training& training);

  void begin_epoch();
  void step(const StepDone& done);
  void leave_out(double seconds) { left_out_s_ += seconds; }  // Of the epoch: a checkpoint was written.
  double epoch_seconds() const;
  void end_epoch(const EpochResult& result);  // Its figures go to the sinks.
  void end_run();                             // The sinks have all; of one that failed at last the console is told.
  // The newest steps with their parts, as many as 8,192 events hold; behind it none is recorded. nullopt: nobody
  // watched them, or none is there whole.
  std::optional<TraceRecord> take_steps();

 private:
  std::int64_t steps_done() const;
  std::map<std::string, double> figures(const StepDone& done);
  void tell_settings();  // Each once, when it is decided.
  void tell_problems();

  Console& console_;
  Training& training_;
  const std::int64_t batches_;  // Of an epoch.
  std::optional<Trace> trace_;
  std::optional<Monitor> monitor_;
  std::set<std::string> settings_told_;  // Their keys.
  LoaderStatistics loader_before_{};
  std::int64_t begin_ns_ = 0, shown_ns_ = 0;
  std::int64_t first_batch_ = 0, samples_ = 0, steps_ = 0;  // Of the epoch in this process.
  std::int64_t run_first_step_ = 0;
  std::int64_t run_begin_ns_ = 0;
  double left_out_s_ = 0;
};

}  // namespace headrace
