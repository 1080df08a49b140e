// Memory over time as a report shows it: class by class, in a fixed order.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::detail {

struct MemoryShare {
  std::string name;
  bool is_known = false;            // Somebody counted it; else all below is empty or 0 and means "unavailable".
  std::vector<std::int64_t> bytes;  // One value a moment.
  std::int64_t at_peak = 0;         // When most was resident.
  std::int64_t mean = 0;
  std::int64_t last = 0;
};

// Parameters, gradients, optimizer, activations, batches, cache, whatever else was counted, and "other" last. Needs a
// moment.
std::vector<MemoryShare> memory_shares(const MemoryTimeline& timeline);
std::size_t peak_index(const MemoryTimeline& timeline);  // The first moment at which most was resident.

// At most `moments_max` (at least 1) moments: of each equal share of them the one with most resident.
MemoryTimeline condensed(const MemoryTimeline& timeline, std::size_t moments_max);

double seconds_at(const MemoryTimeline& timeline, std::size_t index);  // Since the first moment.

}  // namespace headrace::detail
