#include "insight/diagnose/detail/steps.h"

#include <algorithm>
#include <limits>

#include "core/base/fail.h"
#include "insight/diagnose/detail/spans.h"

namespace headrace::detail {
namespace {

// A ring drops events in the order in which they ended. Whatever it dropped ended before `whole_from_ns`, the first end
// that it still holds; so a step that begins no earlier has all its parts, and an earlier one may have lost some.
std::int64_t whole_from_ns(const TraceRecord& record, std::size_t thread) {
  std::int64_t first_end = std::numeric_limits<std::int64_t>::min();
  if (record.dropped == 0) return first_end;
  first_end = std::numeric_limits<std::int64_t>::max();
  for (const TraceEvent& event : record.events) {
    if (event.thread == thread) first_end = std::min(first_end, event.end_ns);
  }
  return first_end;
}

}  // namespace

std::vector<WholeStep> whole_steps(const TraceRecord& record, const std::vector<std::vector<TraceEvent>>& threads,
                                   std::int64_t skip) {
  if (skip < 0) fail(ErrorCode::invalid_argument, "insight: cannot skip {} steps", skip);
  std::vector<bool> is_step;
  for (const TraceRecord::Name& name : record.names) {
    is_step.push_back(detail::is_named(name, step::kStep));
  }
  std::vector<WholeStep> steps;
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    const std::int64_t whole_from = whole_from_ns(record, thread);
    std::int64_t covered_to = std::numeric_limits<std::int64_t>::min();
    for (const TraceEvent& span : threads[thread]) {
      if (!is_step[span.name] || span.begin_ns < covered_to) continue;
      covered_to = span.end_ns;
      if (span.begin_ns >= whole_from) steps.push_back({thread, span.begin_ns, span.end_ns});
    }
  }
  if (static_cast<std::int64_t>(steps.size()) <= skip) {
    fail(ErrorCode::corrupt_data, "insight: the trace holds {} whole steps, {} of them warm-up; at least {} are needed",
         steps.size(), skip, skip + 1);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const WholeStep& a, const WholeStep& b) { return a.begin_ns < b.begin_ns; });
  steps.erase(steps.begin(), steps.begin() + skip);
  return steps;
}

}  // namespace headrace::detail
