#include <headrace/trace.h>

#include <algorithm>
#include <iterator>

namespace headrace {
namespace {

std::uint32_t name_index(TraceRecord& record, const std::string& text, const char* category) {
  const auto found = std::find_if(record.names.begin(), record.names.end(), [&](const TraceRecord::Name& name) {
    return name.text == text && name.category == category;
  });
  const auto index = static_cast<std::uint32_t>(found - record.names.begin());
  if (found == record.names.end()) record.names.push_back({text, category});
  return index;
}

}  // namespace

std::int64_t MemoryTimeline::other(std::size_t index) const {
  std::int64_t rest = resident[index];
  for (const Class& known : classes) rest -= known.bytes[index];
  return std::max<std::int64_t>(rest, 0);
}

void add_memory(TraceRecord& record, const MemoryTimeline& timeline) {
  std::vector<std::uint32_t> names;
  for (const MemoryTimeline::Class& known : timeline.classes) {
    names.push_back(name_index(record, "memory." + known.name, memory::kOther.category));
  }
  const std::uint32_t other = name_index(record, memory::kOther.text, memory::kOther.category);
  const std::uint32_t resident = name_index(record, memory::kResident.text, memory::kResident.category);
  const auto thread = static_cast<std::uint32_t>(record.threads.size());
  record.threads.emplace_back("memory");

  std::vector<TraceEvent> gauges;
  for (std::size_t i = 0; i < timeline.at_ns.size(); ++i) {
    const std::int64_t at = timeline.at_ns[i] - record.start_ns;
    if (at < 0 || at > record.duration_ns) continue;
    const auto add = [&](std::uint32_t name, std::int64_t value) { gauges.push_back({name, thread, at, at, value}); };
    for (std::size_t k = 0; k < names.size(); ++k) add(names[k], timeline.classes[k].bytes[i]);
    add(other, timeline.other(i));
    add(resident, timeline.resident[i]);
  }
  std::vector<TraceEvent> merged;
  merged.reserve(record.events.size() + gauges.size());
  std::merge(record.events.begin(), record.events.end(), gauges.begin(), gauges.end(), std::back_inserter(merged),
             [](const TraceEvent& a, const TraceEvent& b) { return a.begin_ns < b.begin_ns; });
  record.events = std::move(merged);
}

}  // namespace headrace
