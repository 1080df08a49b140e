// A trace as a table, one event a row: CSV and JSON lines, for pandas, DuckDB or a script.
#pragma once

#include <headrace/trace.h>

#include <filesystem>

namespace headrace {

// Columns kind, name, category, thread, begin_ns, duration_ns, value (RFC 4180, line ends "\n"). kind is "span",
// "gauge" (its duration is empty), or "counter": a total over the whole trace, of which only name and value are there;
// the counter "dropped events" is always the last row. Times count from the trace's start. Written aside and renamed;
// errors are write_file's.
void write_trace_csv(const TraceRecord& record, const std::filesystem::path& path);

// The same rows as one JSON object a line, without the keys that a kind does not have. The first line tells the file:
// {"kind":"trace","format":"headrace-events","version":1,"recorder":"headrace","start_ns":...,"duration_ns":...,
// "dropped":...}; start_ns is null where the record's is not known. Bytes that are not UTF-8 become U+FFFD.
void write_trace_jsonl(const TraceRecord& record, const std::filesystem::path& path);

}  // namespace headrace
