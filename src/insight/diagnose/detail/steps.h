// The training steps of a record.
#pragma once

#include <headrace/trace.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::detail {

struct WholeStep {
  std::size_t thread;
  std::int64_t begin_ns, end_ns;
};

// Of `threads`, spans_by_thread() of the record, in the order of their beginnings, without the first `skip`. Of steps
// that overlap on one thread only the first is taken; one whose parts a full ring may have overwritten is left out.
// Error{corrupt_data} when that leaves no step, Error{invalid_argument}: `skip` is below 0.
std::vector<WholeStep> whole_steps(const TraceRecord& record, const std::vector<std::vector<TraceEvent>>& threads,
                                   std::int64_t skip);

}  // namespace headrace::detail
