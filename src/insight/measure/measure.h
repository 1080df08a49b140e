// Where a job's time goes, measured: some steps under a trace, some with the data replaced by one cached batch, some
// without loader workers, and some with a sleep in the place of compute.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/report.h>
#include <headrace/resource_verdict.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>
#include <headrace/tune.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "core/hardware/machine.h"
#include "core/hardware/machine_peaks.h"

namespace headrace {

// Threads that load, and the seconds they have worked so far, summed over them.
struct LoaderWork {
  double busy_s = 0;
  int num_workers = 1;
};

// What loading took so far, in seconds of all that load together.
struct LoadingTotals {
  double read_s = 0, decode_s = 0, augment_s = 0, collate_s = 0;
  double batches = 0;             // That they are of.
  int num_workers = 0;            // 0: the training thread loads.
  int prefetch_batches = 2;       // Of all workers together.
  std::vector<double> batch_s{};  // Of single batches, in the order in which they were loaded; empty: unavailable.
};

// What a step computes and moves; nullopt: nobody counted it.
struct StepWork {
  std::optional<double> flops{};  // Of forward and backward, at least; a multiplication and an addition are two.
  std::string why_no_flops{};
  std::optional<std::int64_t> update_bytes{};  // That an update reads and writes at least,
  std::int64_t update_tensors = 0;             // in so many parameters.
  std::optional<std::int64_t> transfer_bytes{};
  std::optional<double> between_operators_s{};  // Of the interpreter, within forward and backward.
};

// Seconds that reading some samples takes one thread.
struct ReadTimes {
  double first_s = 0;  // Of samples that this process has not read before, as far as that is known.
  double again_s = 0;  // Of the same ones once more.
};

// A job that can also tell what limits it. Its run() records the spans of trace.h's step.
class MeasurableJob : public Job {
 public:
  // With the spans that run() records; what run()'s seconds hold beyond its parts is `other`.
  SplitRun run_split(std::int64_t steps) final;
  // From now on run() takes one cached batch again and again instead of the loader's (the diagnosis' confirmation).
  // Switching it off goes on where the data stood.
  virtual void set_free_data(bool free_data) = 0;
  // nullopt: unavailable, or the training thread loads, and its time is data wait already.
  virtual std::optional<LoaderWork> loader_work() const = 0;
  // False: the training thread loads its batches by itself, so that nothing takes cores from compute; true: as the
  // settings say. Asked for only where loader_work() has a value.
  virtual void set_loads_aside(bool loads_aside) = 0;
  // Whether optimizer.fused = true is in force. False: no, or unknown.
  virtual bool has_fused_optimizer() const { return false; }

  // Below, what a job that does not override them cannot tell or do.

  // From now on run() takes batches of the loader and sleeps so long in the place of each step's forward, backward and
  // update; 0: it computes again, and the data goes on where it stood before. False: not this job.
  virtual bool set_idle_compute(double /*seconds*/) { return false; }
  // From now on run() counts what its thread uses in the parts of its steps; false ends that.
  virtual void set_counts_use(bool /*counts*/) {}
  // Of the steps run since then. nullopt: unavailable.
  virtual std::optional<PartUses> part_uses(std::int64_t /*steps*/) const { return std::nullopt; }
  virtual bool knows_run_delay() const { return true; }
  virtual std::optional<LoadingTotals> loading_totals() const { return std::nullopt; }
  // Reads some samples and leaves the data where it stood. nullopt: they lie in memory, or cannot be read alone.
  virtual std::optional<ReadTimes> read_times() { return std::nullopt; }
  // Of the next step, which may be made for it, with all that it changes put back.
  virtual StepWork step_work() { return {}; }
  // Seconds that Python's garbage collector took so far.
  virtual std::optional<double> garbage_s() const { return std::nullopt; }
  // Of this machine, with the job's threads. nullopt: unavailable.
  virtual std::optional<MachinePeaks> peaks() { return std::nullopt; }

 protected:
  // Seconds by which the last run() let each step's data wait count for more than its span; empty: nothing was moved.
  virtual std::vector<double> moved_data_wait() const { return {}; }
};

struct Measured {
  TraceRecord trace;
  TimeSplit split;
  Diagnosis diagnosis;
  std::optional<std::int64_t> peak_memory;  // Bytes, of the process, over these steps; nullopt: unavailable.
  std::vector<std::int64_t> memory;         // Resident bytes after each step; empty: unavailable.
};

struct MeasureOptions {
  std::int64_t steps = 0;            // Traced.
  std::int64_t compute_threads = 1;  // That the job's steps compute with.
  double blocks_s_max = std::numeric_limits<double>::infinity();
};

// Runs `steps` traced steps after a short warm-up, then interleaved blocks with and without free data, loader threads
// and compute, which are shorter, or left out, where they would take longer than `blocks_s_max`. The job's position and
// parameters move on; settings stay as they are. Throws what run() throws.
Measured measure(MeasurableJob& job, const Machine& machine, const MeasureOptions& options);

// What a tuned job's ledger.json says beyond the ledger: diagnosis, the report's time splits and advice, what was not
// tried and why, peak memory.
void add_measured(nlohmann::ordered_json& document, const Measured& before, const Report& report);

}  // namespace headrace
