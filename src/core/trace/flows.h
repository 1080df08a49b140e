// Flows as every writer needs them.
#pragma once

#include <headrace/trace_flow.h>

#include <span>

namespace headrace {

// Error{invalid_argument}, which numbers the flow: an index beyond the events, a gauge, or a source that begins after
// its target. `flows` is the argument's name in messages.
void check_flows(const TraceRecord& record, std::span<const TraceFlow> flows);

}  // namespace headrace
