// The Chrome JSON trace in files that viewers open, with flows.
#pragma once

#include <headrace/trace_flow.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace headrace {

// Chrome's and TensorBoard's viewers give up on a file of 200 MB or more (xprof issue 720, pytorch issue 130622).
inline constexpr std::int64_t kChromeFileBytes = 190'000'000;

// write_chrome_trace() (headrace/trace.h), ended with the event that passes `bytes_max`, and what is left in further
// files beside it: trace.json, trace-2.json, trace-3.json. Returns their paths. All have the record's facts, threads
// and one time axis; a span is in the part in which it begins. Each is written aside and renamed, the first one first.
// A flow is a pair of flow events (s, f) that a viewer draws as an arrow between two spans. Errors are write_file's and
// check_flows'.
std::vector<std::filesystem::path> write_chrome_parts(const TraceRecord& record, const std::filesystem::path& path,
                                                      std::span<const TraceFlow> flows,
                                                      std::int64_t bytes_max = kChromeFileBytes);

}  // namespace headrace
