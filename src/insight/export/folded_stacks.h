// Folded stacks: what flamegraph.pl, inferno and speedscope read.
#pragma once

#include <headrace/trace.h>

#include <filesystem>
#include <string>

namespace headrace {

// One line for each distinct stack of spans, "main;step;forward 1234\n": thread, names from the outermost in, and the
// nanoseconds in which the last of them was the innermost one open, so that a thread's lines add up to the time with
// any span open. Stacks in which no time went have no line. Spans that overlap without nesting stand on a thread of
// their own (core/trace/ tracks.h). In names ';' becomes ':', and line ends become blanks. In the order of first use;
// gauges have no place.
std::string folded_stacks(const TraceRecord& record);

// The same as a file, written aside and renamed: errors are write_file's.
void write_folded_stacks(const TraceRecord& record, const std::filesystem::path& path);

}  // namespace headrace
