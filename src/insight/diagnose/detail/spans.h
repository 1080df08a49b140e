// The spans of a record, thread by thread.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <vector>

namespace headrace::detail {

// Error{corrupt_data} when an event names a thread or name that the record lacks, or ends before it begins: a record
// may come from a file.
void check_spans(const TraceRecord& record);

// One list a thread, in the order in which the spans began; of two that begin together the longer one first, so that an
// outer span comes before what it holds. Gauges are left out. Errors are check_spans'.
std::vector<std::vector<TraceEvent>> spans_by_thread(const TraceRecord& record);

inline bool is_named(const TraceRecord::Name& name, const SpanName& span) {
  return name.text == span.text && name.category == span.category;
}

inline double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace headrace::detail
