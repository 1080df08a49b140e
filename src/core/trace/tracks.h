// Rows of a viewer on which spans nest strictly.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// A viewer draws one stack of spans a track, and shows nonsense where two spans of a track overlap without one holding
// the other. Spans between two moments of anybody's choice (record_span) can do that.
struct Tracks {
  // The record's threads, and behind them "NAME (2)", "NAME (3)", ... for what overlaps there.
  std::vector<std::string> names;
  std::vector<std::uint32_t> threads;   // Of each track: index into TraceRecord::threads.
  std::vector<std::uint32_t> of_event;  // Index into names, one an event.
};

// Each span lies on its thread's own track where it nests there, otherwise on the first further one of that thread
// where it does; no begin or end changes. Gauges stay on their thread's. A pure function, safe to call from any thread;
// some nanoseconds an event where nothing overlaps.
Tracks assign_tracks(const TraceRecord& record);

}  // namespace headrace
