#include "core/trace/stack_tree.h"

#include <unordered_map>

#include "core/trace/tracks.h"

namespace headrace {
namespace {

// For each name of the record the first one with its text.
std::vector<std::uint32_t> first_names(const TraceRecord& record) {
  std::unordered_map<std::string, std::uint32_t> known;
  std::vector<std::uint32_t> first;
  first.reserve(record.names.size());
  for (std::uint32_t name = 0; name < record.names.size(); ++name) {
    first.push_back(known.try_emplace(record.names[name].text, name).first->second);
  }
  return first;
}

struct OpenSpan {
  std::int64_t end_ns;
  std::uint32_t node;
};

}  // namespace

StackTree stack_tree(const TraceRecord& record) {
  Tracks tracks = assign_tracks(record);
  const std::vector<std::uint32_t> first = first_names(record);
  StackTree tree;
  tree.nodes.resize(tracks.names.size());
  for (std::uint32_t track = 0; track < tree.nodes.size(); ++track) tree.nodes[track].name = track;

  std::unordered_map<std::uint64_t, std::uint32_t> children;  // By parent and name.
  std::vector<std::vector<OpenSpan>> open(tracks.names.size());
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    const TraceEvent& event = record.events[i];
    if (event.end_ns == event.begin_ns) continue;
    const std::int64_t ns = event.end_ns - event.begin_ns;
    std::vector<OpenSpan>& around = open[tracks.of_event[i]];
    while (!around.empty() && around.back().end_ns <= event.begin_ns) around.pop_back();
    const std::uint32_t parent = around.empty() ? tracks.of_event[i] : around.back().node;
    const std::uint32_t name = first[event.name];
    const auto next = static_cast<std::uint32_t>(tree.nodes.size());
    const auto [found, is_new] = children.try_emplace(std::uint64_t{parent} << 32 | name, next);
    if (is_new) tree.nodes.push_back({parent, name});
    StackTree::Node& node = tree.nodes[found->second];
    ++node.calls;
    node.total_ns += ns;
    node.self_ns += ns;
    StackTree::Node& holder = tree.nodes[parent];
    if (around.empty()) {
      ++holder.calls;
      holder.total_ns += ns;
    } else {
      holder.self_ns -= ns;
    }
    around.push_back({event.end_ns, found->second});
  }
  tree.tracks = std::move(tracks.names);
  return tree;
}

}  // namespace headrace
