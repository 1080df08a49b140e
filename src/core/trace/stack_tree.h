// The spans of a record as a tree of distinct stacks: what flame graphs are drawn from.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct StackTree {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Node {
    std::uint32_t parent = kNone;  // Index into nodes.
    std::uint32_t name = 0;        // Index into TraceRecord::names, of the first span; of a root, into tracks.
    std::int64_t calls = 0;        // Spans.
    std::int64_t total_ns = 0;     // Of these, what they enclose included; of a root, of the outermost ones.
    std::int64_t self_ns = 0;      // In which no span within them was open; of a root 0.
  };
  std::vector<std::string> tracks;  // Threads, and behind them "NAME (2)", ... for what overlaps (tracks.h).
  std::vector<Node> nodes;          // The roots first, one a track; then in the order of first use.
};

// A span lies below the innermost one of its track that encloses it; a name below itself is a node of its own. Names
// that differ in their category alone are one. Gauges have no place. The record must be sound, as assign_tracks() wants
// it. A pure function, safe to call from any thread; a lookup in a hash table a span.
StackTree stack_tree(const TraceRecord& record);

}  // namespace headrace
