#include "insight/diagnose/detail/spans.h"

#include <algorithm>

#include "core/base/fail.h"

namespace headrace::detail {

void check_spans(const TraceRecord& record) {
  for (const TraceEvent& event : record.events) {
    if (event.name >= record.names.size() || event.thread >= record.threads.size()) {
      fail(ErrorCode::corrupt_data, "insight: an event refers to name {} of {} and thread {} of {}", event.name,
           record.names.size(), event.thread, record.threads.size());
    }
    if (event.end_ns < event.begin_ns) {
      fail(ErrorCode::corrupt_data, "insight: span {} begins at {} ns and ends at {} ns", record.names[event.name].text,
           event.begin_ns, event.end_ns);
    }
  }
}

std::vector<std::vector<TraceEvent>> spans_by_thread(const TraceRecord& record) {
  check_spans(record);
  std::vector<std::vector<TraceEvent>> threads(record.threads.size());
  for (const TraceEvent& event : record.events) {
    if (event.end_ns > event.begin_ns) threads[event.thread].push_back(event);
  }
  for (std::vector<TraceEvent>& spans : threads) {
    std::stable_sort(spans.begin(), spans.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
  }
  return threads;
}

}  // namespace headrace::detail
