// Who may use which core: made once from the machine and divided between loading and compute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct CoreSplit {
  int compute;  // Threads of an operator.
  int loading;  // Loader threads.
};

// Requested threads (0: automatic for compute, as written for loading) against `usable` cores. Compute's automatic
// value is every usable core: a loader that is idle most of the time costs less than a core taken from compute. A
// loader that finds its threads by itself (AUTOTUNE) begins with one.
CoreSplit split_cores(int usable, std::int64_t compute_requested, std::int64_t loading_requested);

// What to try where no change of one side alone pays, the most promising first: each core to one side or the other, by
// quarters, and for a job that waits for data nearly all the time every core to loading beside one thread of compute.
// Transforms are work of the loading threads. Empty for one core.
std::vector<CoreSplit> splits_to_try(int usable);

// A sentence's middle with the numbers where loader workers and compute threads together are more than two a usable
// core, one for each side, as split_cores() and splits_to_try() have at most; else empty. Beyond that threads wait for
// cores rather than for data.
std::string oversubscription(std::int64_t workers, std::int64_t compute_threads, int usable);

}  // namespace headrace
