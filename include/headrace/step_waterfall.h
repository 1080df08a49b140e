// One training step as a waterfall: which span ran when, on every thread. A pure function, safe to call from any
// thread.
#pragma once

#include <headrace/trace.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct StepWaterfall {
  struct Bar {  // Seconds since the step began, at least 0 and at most its length.
    double begin_s = 0, end_s = 0;
  };
  struct Row {  // All spans of one name at one depth of one thread.
    std::string name, category, thread;
    bool is_own_thread = true;  // It is the thread that runs the step.
    std::size_t depth = 0;      // 0: no other span but the step's own encloses it.
    std::vector<Bar> bars;      // In order. Bars that nobody could tell apart are one.
    std::int64_t calls = 0;
    double total_s = 0;  // Within the step, of all of them.
  };
  std::int64_t step = 0;   // Its place among the steps, counted from 1.
  std::int64_t steps = 0;  // That were looked at.
  double length_s = 0;
  std::vector<Row> rows;           // Of the step's own thread first; of a thread by the beginning of the first bar.
  std::int64_t rows_left_out = 0;  // By the limits.
};

struct WaterfallLimits {
  std::size_t depth_max = 3;   // Depths that are shown: 1 is what the step encloses and no more.
  std::size_t rows_max = 24;   // Those with the most time are kept.
  std::size_t bars_max = 600;  // Together, but at least one a row.
};

// Of the step of the middle duration (of an even number the longer of the two), which is one that ran, and no mean. The
// first `skip` steps are left out as warm-up. Spans that began before the step or end behind it are cut to it. Errors
// are split_time()'s. Of n spans n log n.
StepWaterfall step_waterfall(const TraceRecord& record, std::int64_t skip = 0, const WaterfallLimits& limits = {});

}  // namespace headrace
