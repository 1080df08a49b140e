// What a training run shows while it goes on: a view in the terminal, and the sinks, alerts and the flight recorder
// that [report] names.
#pragma once

#include <headrace/flight_recorder.h>
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
#include "engine/verbs/train_alerts.h"
#include "engine/verbs/train_history.h"
#include "torch/train/loop.h"

namespace headrace {

// Of what a loader did between two looks: "loader.queue_depth", the mean of whole batches that waited when one was
// asked for, and since it was built "cache.hit_rate" and "cache.lookups". What nothing happened for is left out.
std::map<std::string, double> loader_figures(const LoaderStatistics& before, const LoaderStatistics& now);

// Owns the Trace of the run's steps, its Monitor and its FlightRecorder; no other Trace exists meanwhile. None of them
// where neither a terminal or log shows progress nor anything of [report] is asked for. For one thread. Where it goes
// because an exception passes, the flight recorder writes its dump "exception".
//
// Figures are read a few times a second, and losses then alone: a step costs its spans, some 25 ns each. With a flight
// recorder those of the loader's threads, too, and up to kFlightMemory.
class TrainProgress {
 public:
  // Tells the settings in force as events, those that the training decides once they are decided, and where the sinks
  // are to the console. Error{invalid_argument}: an address in [report] is none. A sink or a folder of flights that
  // cannot be opened is a warning, as is an alert that has nothing to judge.
  TrainProgress(Console& console, Training& training);

  void begin_epoch();
  void step(const StepDone& done);
  void leave_out(double seconds) { left_out_s_ += seconds; }  // Of the epoch: a checkpoint was written.
  double epoch_seconds() const;
  void end_epoch(const EpochResult& result);  // Its figures go to the sinks.
  // The sinks have all, and what was asked of the flight recorder is written; the console is told the last of both.
  void end_run();
  // The newest steps with their parts, as many as 8,192 events hold; behind it none is recorded. nullopt: nobody
  // watched them, or none is there whole.
  std::optional<TraceRecord> take_steps();
  // Whole after end_run().
  const WatchedRun& watched() const { return watched_; }

 private:
  std::int64_t steps_done() const;
  std::map<std::string, double> figures(const StepDone& done);
  void record_flights(const std::string& folder);
  void watch_for_alerts();
  void tell_setting_asked(Applied setting);
  void tell_settings();  // Each once, when it is decided.
  void tell_events();    // Alerts, and sinks that fail, to the console.
  void tell_flights(const FlightRecorder::Status& flown);

  Console& console_;
  Training& training_;
  const std::int64_t batches_;  // Of an epoch.
  std::optional<Trace> trace_;
  std::optional<FlightRecorder> flights_;  // Ends before the trace.
  std::string flight_problem_told_;
  std::optional<Monitor> monitor_;
  WatchedRun watched_;
  std::set<std::string> settings_told_;  // Their keys.
  LoaderStatistics loader_before_{};
  std::int64_t begin_ns_ = 0, shown_ns_ = 0;
  std::int64_t first_batch_ = 0, samples_ = 0, steps_ = 0;  // Of the epoch in this process,
  std::int64_t shown_samples_ = 0;                          // when they were shown last,
  double shown_s_ = 0;                                      // and the epoch's seconds then.
  std::int64_t run_first_step_ = 0;
  std::int64_t run_begin_ns_ = 0;
  double left_out_s_ = 0;
};

}  // namespace headrace
