// Arrows between spans of a trace: what one thread made and another one used.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// From one span to a later one, of any threads: indices into TraceRecord::events. Neither is a gauge, and the source
// does not begin after the target.
struct TraceFlow {
  std::uint32_t source;
  std::uint32_t target;
};

// From each span named `source` to the first span named `target` that has the same value and does not begin before it;
// sources without such a target give none. In the order of the sources. A pure function, safe to call from any thread;
// O(n log n) in the events.
std::vector<TraceFlow> flows_by_value(const TraceRecord& record, const std::string& source, const std::string& target);

}  // namespace headrace
