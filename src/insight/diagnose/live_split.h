// The time split of a loop's newest steps, for a view of it while it goes on.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <map>
#include <string>

namespace headrace {

// How far back a split of steps of this length looks (Trace::recent()): a second, or 200 steps where that is shorter,
// and four steps at least, however long they take.
std::int64_t split_time_ns(std::int64_t step_ns);

// Whether there is a step of which no part was lost: one that began before the first end that a full ring still holds
// may lack some.
bool has_whole_step(const TraceRecord& record);

// Means over the record's steps; "other" is what no part of them covers. By name "time.<part>_s", seconds a step;
// empty: there is no whole step in the record, or rings have lost some. A pure function.
std::map<std::string, double> split_figures(const TraceRecord& record);

}  // namespace headrace
