// Perfetto's trace format: the protobuf messages that ui.perfetto.dev and its trace_processor read.
//
// Field numbers are those of Perfetto's published protos (protos/perfetto/trace, TracePacket and TrackEvent are its
// stable part). A thread is a packet sequence with names interned once, and times as differences to the packet before,
// in nanoseconds of a clock that a ClockSnapshot ties to CLOCK_MONOTONIC. A span is a packet at its begin and one at
// its end: 26 to 30 bytes where two events of a thread are at most 2 ms apart (and for the first 127 names and 126
// threads), and 6 to 8 more for a value that is not 0 (a debug annotation "value"). A gauge is a counter of its thread,
// a Counter's total one value at the end. The process has the label "recorder: headrace".
#pragma once

#include <headrace/trace_flow.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace headrace {

// Hands the file's bytes to `append` in pieces of about 1 MiB. Spans that overlap without nesting lie on tracks of
// their own (core/trace/tracks.h). Memory: 4 bytes an event twice, and the piece. Error{invalid_argument}: a flow that
// is none.
void encode_perfetto(const TraceRecord& record, std::span<const TraceFlow> flows,
                     const std::function<void(std::span<const std::byte>)>& append);

// The same as a file, written aside and renamed: errors are write_file's.
void write_perfetto_trace(const TraceRecord& record, const std::filesystem::path& path,
                          std::span<const TraceFlow> flows = {});

}  // namespace headrace
