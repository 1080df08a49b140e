// A trace as a file that other programs read.
#pragma once

#include <headrace/trace_flow.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

enum class TraceForm {
  chrome,    // Trace Event Format, JSON: chrome://tracing, Perfetto, TensorBoard. About 110 bytes a span.
  perfetto,  // protobuf: ui.perfetto.dev, trace_processor. 26 to 30 bytes a span.
  folded,    // Stacks with their own time: flamegraph.pl, inferno, speedscope.
  csv,       // One row an event: pandas, DuckDB.
  jsonl,     // The same as one JSON object a line.
};
const char* to_string(TraceForm form);
// Error{invalid_argument} naming the five, and the nearest one.
TraceForm trace_form_of(std::string_view text);
// By which readers know its files: ".json", ".perfetto-trace", ".folded", ".csv", ".jsonl".
const char* suffix_of(TraceForm form);

// Writes `record` aside and renames it to `path`; any thread. Returns the files: one, or of the form chrome as many as
// keep each below 200 MB, beside it: trace.json, trace-2.json, ... Chrome and perfetto show `flows`, and beside them
// loader_flows(); the other forms have no place for them. All but csv and folded tell that headrace recorded them.
// Errors: io (disk, folder), and invalid_argument for flows that are none.
std::vector<std::filesystem::path> export_trace(const TraceRecord& record, const std::filesystem::path& path,
                                                TraceForm form, std::span<const TraceFlow> flows = {});

// From each chunk that a thread of a Loader loaded to the taking of its batch: what flows_by_value() finds between
// "load_chunk" and "take_batch". A chunk of an epoch that was given up may point to the next batch of its index. Pure.
std::vector<TraceFlow> loader_flows(const TraceRecord& record);

}  // namespace headrace
