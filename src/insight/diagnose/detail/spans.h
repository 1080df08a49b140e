// The spans of a record, thread by thread.
#pragma once

#include <headrace/trace.h>

#include <vector>

namespace headrace::detail {

// Error{corrupt_data} when an event names a thread or name that the record lacks, or ends before it begins: a record
// may come from a file.
void check_spans(const TraceRecord& record);

// One list a thread, in the order in which the spans began; of two that begin together the longer one first, so that an
// outer span comes before what it holds. Gauges are left out. Errors are check_spans'.
std::vector<std::vector<TraceEvent>> spans_by_thread(const TraceRecord& record);

}  // namespace headrace::detail
