// Where a job's time goes, measured: some steps under a trace, some with the data replaced by one cached batch, and
// some without loader threads.
#pragma once

#include <headrace/insight.h>
#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "assembly/training_job.h"
#include "hardware/machine.h"

namespace headrace {

struct Measured {
  TraceRecord trace;
  TimeSplit split;
  Diagnosis diagnosis;
  std::optional<std::int64_t> peak_memory;  // Bytes, of the process, over these steps; nullopt: unavailable.
  std::vector<std::int64_t> memory;         // Resident bytes after each step; empty: unavailable.
  LoaderStatistics loader;                  // Difference over the traced steps.
};

// Runs `steps` traced steps after a short warm-up, then interleaved blocks with and without free data
// and loader threads. The job's
// position and parameters move on; settings stay as they are. Throws what run() throws.
Measured measure(TrainingJob& job, const Machine& machine, std::int64_t steps);

}  // namespace headrace
