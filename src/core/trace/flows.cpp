#include "core/trace/flows.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

std::vector<TraceFlow> flows_by_value(const TraceRecord& record, const std::string& source, const std::string& target) {
  std::map<std::int64_t, std::vector<std::uint32_t>> targets;  // By value, in the order of their begin.
  const auto is_span_named = [&](const TraceEvent& event, const std::string& name) {
    return event.end_ns > event.begin_ns && record.names[event.name].text == name;
  };
  for (std::uint32_t i = 0; i < record.events.size(); ++i) {
    if (is_span_named(record.events[i], target)) targets[record.events[i].value].push_back(i);
  }
  std::vector<TraceFlow> flows;
  for (std::uint32_t i = 0; i < record.events.size(); ++i) {
    const TraceEvent& event = record.events[i];
    if (!is_span_named(event, source)) continue;
    const auto found = targets.find(event.value);
    if (found == targets.end()) continue;
    const auto next = std::find_if(
        std::lower_bound(found->second.begin(), found->second.end(), event.begin_ns,
                         [&](std::uint32_t index, std::int64_t ns) { return record.events[index].begin_ns < ns; }),
        found->second.end(), [i](std::uint32_t index) { return index != i; });
    if (next != found->second.end()) flows.push_back({i, *next});
  }
  return flows;
}

void check_flows(const TraceRecord& record, std::span<const TraceFlow> flows) {
  const auto is_span = [&](std::uint32_t index) {
    return index < record.events.size() && record.events[index].end_ns > record.events[index].begin_ns;
  };
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const auto [source, target] = flows[i];
    if (!is_span(source) || !is_span(target)) {
      fail(ErrorCode::invalid_argument, "trace: flows[{}]: wanted two of {} events that are spans, found {} and {}", i,
           record.events.size(), source, target);
    }
    if (source == target || record.events[source].begin_ns > record.events[target].begin_ns) {
      fail(ErrorCode::invalid_argument,
           "trace: flows[{}]: wanted a target that begins no earlier than its source, found {} ns after {} ns", i,
           record.events[target].begin_ns, record.events[source].begin_ns);
    }
  }
}

std::vector<FlowEnd> flow_ends(std::span<const TraceFlow> flows) {
  std::vector<FlowEnd> ends;
  ends.reserve(2 * flows.size());
  for (std::size_t i = 0; i < flows.size(); ++i) {
    ends.push_back({flows[i].source, i, false});
    ends.push_back({flows[i].target, i, true});
  }
  std::sort(ends.begin(), ends.end(), [](const FlowEnd& a, const FlowEnd& b) {
    return std::pair{a.event, a.flow} < std::pair{b.event, b.flow};
  });
  return ends;
}

}  // namespace headrace
