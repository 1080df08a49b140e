// Flows as every writer needs them.
#pragma once

#include <headrace/trace_flow.h>

#include <cstddef>
#include <span>
#include <vector>

namespace headrace {

// Error{invalid_argument}, which numbers the flow: an index beyond the events, a gauge, or a source that begins after
// its target. `flows` is the argument's name in messages.
void check_flows(const TraceRecord& record, std::span<const TraceFlow> flows);

struct FlowEnd {
  std::size_t event;  // Index into TraceRecord::events.
  std::size_t flow;   // Index into the flows.
  bool is_target;
};
// Both ends of each flow, by event and then by flow: for a writer that comes to the events in their order.
std::vector<FlowEnd> flow_ends(std::span<const TraceFlow> flows);

}  // namespace headrace
