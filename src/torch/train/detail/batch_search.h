// Which batch sizes to try, and which one to take: the arithmetic of the batch planner, without tensors.
#pragma once

#include <headrace/batch_planner.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace {

struct SearchBounds {
  std::int64_t initial = 32, max = 512;  // Samples, at least 1; initial is not above max.
  std::int64_t held = 0;                 // Bytes that a step holds whatever its size: no peak is below.
  std::int64_t limit = 0;                // Bytes that no chosen size may pass.
  double target = 0;                     // Samples/s; 0: none.
};

struct SearchResult {
  std::vector<BatchProbe> probes;
  std::int64_t batch_size = 0;      // 0: not even one sample fits.
  std::int64_t largest = 0;         // That fits.
  double intercept = 0, slope = 0;  // Bytes: of the line through the peaks before the update.
  std::string reason;
};

// Deterministic in what `measure` returns. A probe fits where it did not run out and its peak is within the limit.
//
// The slope is never less than that of what the forward keeps, which is a line through all sizes, while the peak of a
// small one may be that of its gradients or its update.
SearchResult search_batch_size(const SearchBounds& bounds, const std::function<BatchProbe(std::int64_t)>& measure);

// Of one optimizer step; the last is smaller where `size` does not divide its samples.
struct MicroBatches {
  std::int64_t size = 0, count = 0;
};

// The largest divisor of `samples` from `largest` down to half of it, so that all are equal; where there is none, as
// few as `largest` allows, equal but for the last. Both at least 1.
MicroBatches micro_batches_of(std::int64_t samples, std::int64_t largest);

// Bytes that tensors may hold where nobody has set a limit: beside what they hold now, nine tenths of what the machine
// has left, as others grow, too, and never so much that the search's `own` bytes find no room.
std::int64_t limit_of_machine(std::int64_t held, std::int64_t left, std::int64_t own);

}  // namespace headrace
