// The parts of a training loop that somebody else runs, told by hooks at their ends.
//
// A step begins with the wait for its batch, or with its forward where no loader is hooked, and ends where the next
// batch is asked for, or with the first forward after an update where none is; it is recorded when a backward or an
// update happened in it. Forward lasts from the model's first call to the beginning of backward, the loss included. All
// calls come from the thread that made the watch; those of other threads are ignored. A call costs under a microsecond
// beside Python's own, and three more in the steps whose use of cores and pages is counted (PartUseCounter).
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/flight_recorder.h>
#include <headrace/report.h>
#include <headrace/trace.h>
#include <headrace/wall_split.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "core/hardware/machine_peaks.h"
#include "core/hardware/memory_stall.h"
#include "core/hardware/run_delay.h"
#include "core/hardware/thread_usage.h"
#include "insight/measure/measure.h"
#include "insight/measure/part_use_counter.h"
#include "python/core/loop_memory.h"

namespace headrace::python {

struct WatchResult {
  // JSON: steps, time split, wall split, waits, diagnosis, profile summary, metrics, memory, flights, host_time, the
  // choice of what was recorded, and the histogram of the steps' times.
  std::string document;
  std::string text;  // For a terminal.
  std::string html;  // A report of one file.
};

class LoopWatch {
 public:
  // Begins to record: Error{invalid_argument} while another trace does. The newest events of each thread are kept, all
  // together within kFlightMemory. Of what is not the watch's own those that `choice` has, by the watch's count of
  // steps; where that leaves anything out, what threads waited for is unavailable.
  LoopWatch(std::int64_t events_per_thread, const TraceChoice& choice);

  void pass_begins();  // iter(loader): what it costs belongs to the first batch's wait.
  void data_begins();
  void data_ends(const nanobind::object& batch);  // None: the epoch is over. Under the GIL.
  void forward_begins(bool for_training);
  void forward_ends(bool for_training);
  void backward_begins();
  void backward_ends();
  void optimizer_begins();
  void optimizer_ends();
  // What lies beside these: "transfer", "checkpoint", or "optimizer" for what is done to gradients without an update.
  // Within a call, a wait or another of these nothing is told apart. Error{invalid_argument}: another text.
  void beside_begins(const std::string& what);
  void beside_ends();
  // Keeps a flight recorder (headrace/flight_recorder.h) until stop(), which is told of each step. `signal` 0: none.
  void record_flights(const std::string& folder, int signal);
  // A path, or empty: so many dumps are written already. Error{invalid_argument}: nothing keeps flights.
  std::string dump(const std::string& reason);
  // Objects of the loop, whose memory is counted. Those that are known already are left out. Under the GIL.
  void add_model(const nanobind::object& model);
  void add_optimizer(const nanobind::object& optimizer);
  // What the loop's loader, its step and the machine took and can do, as far as Python knows it, for the verdict over
  // resources. Any time before result().
  void set_loading(LoadingTotals totals) { loading_ = std::move(totals); }
  void set_step_work(StepWork work) { work_ = std::move(work); }
  void set_idle_wait(double seconds) { experiments_.idle_compute_wait = seconds; }  // As StepExperiments has it.
  void set_peaks(MachinePeaks peaks) { peaks_ = std::move(peaks); }
  // Of Python's garbage collector, in the watching thread: what lies outside of steps is left out.
  void add_garbage(double seconds) {
    if (step_) garbage_of_step_s_ += seconds;
  }
  // A device computes: the times are the host's, above which the result says so, and it has no diagnosis.
  void time_host_alone() { host_time_ = true; }

  std::int64_t steps() const { return steps_; }  // That were seen so far.
  // Of the newest steps, until stop(): those of split_figures(), and samples_per_s where batches tell their samples.
  // From any thread, under the GIL, for some hundred microseconds.
  std::map<std::string, double> live() const;

  // Ends recording with the last part, whatever the last count raises. A second call does nothing. Under the GIL.
  void stop();
  // After stop(). `command` repeats it; empty: there is none. Error{invalid_argument}: no whole step was seen.
  WatchResult result(const std::string& title, const std::string& command) const;
  // export_trace()'s files and errors; trace_form_of() has the forms.
  std::vector<std::filesystem::path> write_trace(const std::string& path, const std::string& form) const;

 private:
  static constexpr const char* kHostTime = "host time: the device is not waited for";

  Waits waits() const;
  nlohmann::ordered_json document_of(const DiagnosisInput& input, const Report& report) const;
  bool here() const { return std::this_thread::get_id() == thread_; }
  void end_step(TraceMoment at, bool is_last = false);
  ResourceFigures figures(const TimeSplit& split) const;
  void end_forward(TraceMoment at);
  void sample_memory(std::int64_t now_ns);  // At a step's end: recorded as it was at most 50 ms before.
  void note_cpu_taken();
  void note_objects();

  std::thread::id thread_ = std::this_thread::get_id();
  const TraceChoice choice_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<FlightRecorder> flights_;  // Ends before the trace.
  FlightRecorder::Status flown_;             // When it has ended.
  TraceRecord record_;
  bool has_wait_ = false;    // This step began with the wait for its batch.
  bool trains_ = false;      // A backward or an update happened in this step.
  bool updated_ = false;     // An update did.
  bool in_closure_ = false;  // The optimizer's step called forward: its part goes on behind the backward.
  std::int64_t steps_ = 0, samples_ = 0;
  // Where what is open began; nullopt: it is not.
  std::optional<TraceMoment> step_, pass_, data_, forward_, evaluation_, backward_, optimizer_;
  TraceMoment forward_end_, last_part_end_;
  const SpanName* beside_ = nullptr;  // Null: none is open.
  TraceMoment beside_begin_;
  int beside_depth_ = 0, outer_depth_ = 0;  // Of calls within each other, and of the one that is recorded.
  std::int64_t step_begin_ns_ = 0, last_step_ns_ = 0, last_step_end_ns_ = 0;  // The last two of the one before.
  PartUseCounter use_;
  std::vector<ThreadDelay> delays_ = sibling_delays();
  std::optional<double> stall_began_s_ = memory_stall_s();
  std::optional<double> thread_delay_s_, stall_s_;  // When it has ended.
  std::optional<LoadingTotals> loading_;
  StepWork work_;
  std::optional<MachinePeaks> peaks_;
  StepExperiments experiments_;
  double garbage_s_ = 0, garbage_of_step_s_ = 0;  // Of steps that have ended, and of the one at hand.
  RunDelay run_delay_;
  std::optional<std::int64_t> run_delay_ns_ = run_delay_.ns();  // At the last step's end.
  std::int64_t memory_looked_at_ns_ = 0;
  std::vector<std::int64_t> memory_;  // Resident bytes, at most 20 times a second.
  bool peak_known_ = false;
  std::optional<std::int64_t> peak_memory_;
  // Until stop(), by another thread perhaps: who counts holds it, as counting runs Python.
  std::shared_ptr<LoopMemory> objects_memory_;
  MemoryTimeline timeline_;
  bool host_time_ = false;
};

}  // namespace headrace::python
