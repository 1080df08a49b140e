#include "insight/export/folded_stacks.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "core/trace/tracks.h"

namespace headrace {
namespace {

std::string frame(std::string name) {
  for (char& letter : name) {
    if (letter == ';') letter = ':';
    if (letter == '\n' || letter == '\r') letter = ' ';
  }
  return name;
}

// One node a distinct stack: its path is that of its parent and one name more.
class StackTree {
 public:
  std::uint32_t root(const std::string& thread) { return add({kNone, frame(thread), 0}); }

  // `text_id`: one for each distinct text.
  std::uint32_t child(std::uint32_t parent, std::uint32_t text_id, const std::string& text) {
    const auto next = static_cast<std::uint32_t>(nodes_.size());
    const auto [found, is_new] = children_.try_emplace(std::uint64_t{parent} << 32 | text_id, next);
    if (is_new) add({parent, frame(text), 0});
    return found->second;
  }

  void add_ns(std::uint32_t node, std::int64_t ns) { nodes_[node].self_ns += ns; }

  std::string text() const {
    std::string lines;
    for (const Node& node : nodes_) {
      if (node.self_ns <= 0) continue;
      fmt::format_to(std::back_inserter(lines), "{} {}\n", path(node), node.self_ns);
    }
    return lines;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Node {
    std::uint32_t parent;
    std::string frame;
    std::int64_t self_ns;
  };

  std::uint32_t add(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<std::uint32_t>(nodes_.size()) - 1;
  }
  std::string path(const Node& node) const {
    return node.parent == kNone ? node.frame : path(nodes_[node.parent]) + ';' + node.frame;
  }

  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
};

struct OpenSpan {
  std::int64_t end_ns;
  std::uint32_t node;
};

}  // namespace

std::string folded_stacks(const TraceRecord& record) {
  const Tracks tracks = assign_tracks(record);
  StackTree tree;
  std::vector<std::uint32_t> roots;
  for (const std::string& name : tracks.names) roots.push_back(tree.root(name));

  // Names that differ in their category alone are one frame.
  std::unordered_map<std::string, std::uint32_t> ids;
  std::vector<std::uint32_t> text_ids;
  for (const TraceRecord::Name& name : record.names) {
    text_ids.push_back(ids.try_emplace(name.text, static_cast<std::uint32_t>(ids.size())).first->second);
  }

  std::vector<std::vector<OpenSpan>> open(tracks.names.size());
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    const TraceEvent& event = record.events[i];
    if (event.end_ns == event.begin_ns) continue;
    std::vector<OpenSpan>& around = open[tracks.of_event[i]];
    while (!around.empty() && around.back().end_ns <= event.begin_ns) around.pop_back();
    const std::uint32_t parent = around.empty() ? roots[tracks.of_event[i]] : around.back().node;
    const std::uint32_t node = tree.child(parent, text_ids[event.name], record.names[event.name].text);
    // Its time is the innermost one's until another begins within it.
    tree.add_ns(node, event.end_ns - event.begin_ns);
    if (!around.empty()) tree.add_ns(parent, event.begin_ns - event.end_ns);
    around.push_back({event.end_ns, node});
  }
  return tree.text();
}

void write_folded_stacks(const TraceRecord& record, const std::filesystem::path& path) {
  write_file(path, folded_stacks(record));
}

}  // namespace headrace
