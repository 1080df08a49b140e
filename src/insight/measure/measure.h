// Where a job's time goes, measured: some steps under a trace, some with the data replaced by one cached batch, and
// some without loader workers.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/report.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>
#include <headrace/tune.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "core/hardware/machine.h"

namespace headrace {

// Threads that load, and the seconds they have worked so far, summed over them.
struct LoaderWork {
  double busy_s = 0;
  int num_workers = 1;
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

// Runs `steps` traced steps after a short warm-up, then interleaved blocks with and without free data and loader
// threads, which are shorter, or left out, where they would take longer than `blocks_s_max`. The job's position and
// parameters move on; settings stay as they are. Throws what run() throws.
Measured measure(MeasurableJob& job, const Machine& machine, const MeasureOptions& options);

// What a tuned job's ledger.json says beyond the ledger: diagnosis, the report's time splits and advice, what was not
// tried and why, peak memory.
void add_measured(nlohmann::ordered_json& document, const Measured& before, const Report& report);

}  // namespace headrace
