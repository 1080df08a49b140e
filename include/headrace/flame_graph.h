// A flame graph of a trace: for each thread, where its time went by stacks of spans. A pure function, safe to call from
// any thread.
#pragma once

#include <headrace/trace.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// After B. Gregg's flame graphs (CACM 59(6), 2016), upside down: the thread is on top, and what a span encloses below
// it. Width is time, and from left to right there is no time, as calls of one stack are added up wherever they were.
struct FlameGraph {
  struct Frame {
    std::string name, category;  // Of the span; of a thread its name and no category.
    std::size_t depth = 0;       // 0: the thread.
    std::int64_t from_ns = 0;    // Its left edge, from that of its thread.
    std::int64_t total_ns = 0;
    std::int64_t self_ns = 0;  // With no span within it open; of a thread 0.
    std::int64_t calls = 0;    // Of a thread those that no other span encloses.
  };
  // The thread with the training steps first, then those with the most time. A frame stands before those within it, of
  // which the longest comes first.
  std::vector<Frame> frames;
  std::int64_t frames_left_out = 0;  // By the limits.
  std::int64_t threads_left_out = 0;
};

struct FlameLimits {
  double share_min = 0.002;      // Of its thread's time: shorter frames would not be seen.
  std::size_t depth_max = 40;    // Frames below one another, the thread included; at least 1.
  std::size_t frames_max = 400;  // The longest are kept.
  std::size_t threads_max = 4;
};

// A frame is left out with all that is within it. Threads without a span have no frame. Error{corrupt_data} as
// get_profile_summary(). Of n spans n log n.
FlameGraph flame_graph(const TraceRecord& record, const FlameLimits& limits = {});

}  // namespace headrace
