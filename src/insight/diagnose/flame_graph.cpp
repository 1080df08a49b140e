#include <headrace/flame_graph.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/trace/stack_tree.h"
#include "insight/diagnose/detail/spans.h"

namespace headrace {
namespace {

using Node = StackTree::Node;

class Drawing {
 public:
  Drawing(const TraceRecord& record, const StackTree& tree, const FlameLimits& limits)
      : record_(record), tree_(tree), limits_(limits), children_(tree.nodes.size()) {
    for (std::uint32_t node = 0; node < tree.nodes.size(); ++node) {
      const std::uint32_t parent = tree.nodes[node].parent;
      root_of_.push_back(parent == StackTree::kNone ? node : root_of_[parent]);
      if (parent != StackTree::kNone) children_[parent].push_back(node);
    }
    for (std::vector<std::uint32_t>& within : children_) sort_by_time(within);
  }

  FlameGraph graph() const {
    const std::vector<std::uint32_t> roots = ordered_roots();
    const auto end = roots.begin() + static_cast<std::ptrdiff_t>(std::min(roots.size(), limits_.threads_max));
    const std::vector<std::uint32_t> drawn{roots.begin(), end};
    const std::vector<bool> kept = kept_nodes(drawn);
    FlameGraph graph;
    for (const std::uint32_t root : drawn) add(graph, root, kept);
    const auto nodes = std::count_if(root_of_.begin(), root_of_.end(), [&](std::uint32_t root) {
      return std::find(drawn.begin(), drawn.end(), root) != drawn.end();
    });
    graph.frames_left_out = nodes - static_cast<std::int64_t>(graph.frames.size());
    graph.threads_left_out = static_cast<std::int64_t>(roots.size() - drawn.size());
    return graph;
  }

 private:
  struct Place {
    std::uint32_t node;
    std::size_t depth;
    std::int64_t from_ns;
  };

  void sort_by_time(std::vector<std::uint32_t>& nodes) const {
    std::stable_sort(nodes.begin(), nodes.end(), [this](std::uint32_t a, std::uint32_t b) {
      return tree_.nodes[a].total_ns > tree_.nodes[b].total_ns;
    });
  }

  bool has_steps(std::uint32_t root) const {
    return std::any_of(children_[root].begin(), children_[root].end(), [this](std::uint32_t node) {
      const TraceRecord::Name& name = record_.names[tree_.nodes[node].name];
      return detail::is_named(name, step::kStep);
    });
  }

  std::vector<std::uint32_t> ordered_roots() const {
    std::vector<std::uint32_t> roots;
    for (std::uint32_t root = 0; root < tree_.tracks.size(); ++root) {
      if (tree_.nodes[root].total_ns > 0) roots.push_back(root);
    }
    sort_by_time(roots);
    std::stable_partition(roots.begin(), roots.end(), [this](std::uint32_t root) { return has_steps(root); });
    return roots;
  }

  // Which nodes have a frame: the longest, and so whatever encloses them.
  std::vector<bool> kept_nodes(const std::vector<std::uint32_t>& drawn) const {
    std::vector<std::uint32_t> nodes;
    for (const std::uint32_t root : drawn) {
      const double least = limits_.share_min * static_cast<double>(tree_.nodes[root].total_ns);
      for (std::uint32_t node = 0; node < tree_.nodes.size(); ++node) {
        if (root_of_[node] == root && static_cast<double>(tree_.nodes[node].total_ns) >= least) nodes.push_back(node);
      }
    }
    std::sort(nodes.begin(), nodes.end());  // A parent before its children, also among equals.
    sort_by_time(nodes);
    nodes.resize(std::min(nodes.size(), limits_.frames_max));
    std::vector<bool> kept(tree_.nodes.size(), false);
    for (const std::uint32_t node : nodes) kept[node] = true;
    return kept;
  }

  // Without recursion: a record may nest as deep as it likes.
  void add(FlameGraph& graph, std::uint32_t root, const std::vector<bool>& kept) const {
    std::vector<Place> left;
    if (kept[root]) left.push_back({root, 0, 0});
    while (!left.empty()) {
      const Place place = left.back();
      left.pop_back();
      graph.frames.push_back(frame_of(place));
      if (place.depth + 1 >= limits_.depth_max) continue;
      std::vector<Place> within;
      std::int64_t edge_ns = place.from_ns;
      for (const std::uint32_t child : children_[place.node]) {
        if (!kept[child]) continue;
        within.push_back({child, place.depth + 1, edge_ns});
        edge_ns += tree_.nodes[child].total_ns;
      }
      left.insert(left.end(), within.rbegin(), within.rend());
    }
  }

  FlameGraph::Frame frame_of(const Place& place) const {
    const Node& node = tree_.nodes[place.node];
    FlameGraph::Frame frame;
    if (node.parent == StackTree::kNone) {
      frame.name = tree_.tracks[node.name];
    } else {
      frame.name = record_.names[node.name].text;
      frame.category = record_.names[node.name].category;
    }
    frame.depth = place.depth;
    frame.from_ns = place.from_ns;
    frame.total_ns = node.total_ns;
    frame.self_ns = node.self_ns;
    frame.calls = node.calls;
    return frame;
  }

  const TraceRecord& record_;
  const StackTree& tree_;
  const FlameLimits& limits_;
  std::vector<std::vector<std::uint32_t>> children_;
  std::vector<std::uint32_t> root_of_;
};

}  // namespace

FlameGraph flame_graph(const TraceRecord& record, const FlameLimits& limits) {
  detail::check_spans(record);
  const StackTree tree = stack_tree(record);
  return Drawing(record, tree, limits).graph();
}

}  // namespace headrace
