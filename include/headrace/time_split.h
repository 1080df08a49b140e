// Where the time of training steps went. Pure functions of their arguments: no clock, no file, no state; safe to call
// from any thread.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// Seconds of each part, over `steps` steps. `other` is what no part covers: total - the five.
struct TimeSplit {
  std::int64_t steps = 0;
  double total_s = 0;  // Sum of the step spans.
  double data_wait_s = 0;
  double transfer_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double optimizer_s = 0;
  double other_s = 0;
  std::vector<double> step_s;  // Each step's duration, in order of their beginnings.

  struct Parts {
    double data_wait_s = 0;
    double transfer_s = 0;
    double forward_s = 0;
    double backward_s = 0;
    double optimizer_s = 0;
  };
  std::vector<Parts> parts;  // Each step's parts; as long as step_s.
  // When each step ended, since the record's start; of steps that are no record's (sum_steps()) empty.
  std::vector<std::int64_t> end_ns{};
};

// Divides the steps of a record (spans step::k*) by their parts; the first `skip` steps are left out as warm-up.
//
// A part counts for the step that it lies in whole, on the same thread; steps of several threads are added up. No
// nanosecond counts twice: where parts nest or overlap, it belongs to the one that began first, and of steps that
// overlap on one thread only the first is taken. A step whose parts a full ring may have overwritten is left out.
// Error{corrupt_data} when that leaves no step, or when the record contradicts itself.
TimeSplit split_time(const TraceRecord& record, std::int64_t skip = 0);
// The sums of a split whose step_s and parts hold these steps; `other` is what the parts of each step leave. As many
// parts as steps.
TimeSplit sum_steps(std::vector<double> step_s, std::vector<TimeSplit::Parts> parts);
// Adds steps and seconds of `more`; the lists of single steps stay as they are.
void add_sums(TimeSplit& sums, const TimeSplit& more);

}  // namespace headrace
