// What the loading figures of a run tell: whether its loop waits for data and what would change that, and whether its
// cache pays. Pure functions of its files.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/loading_advice.h>

#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/run_contents.h"
#include "core/hardware/machine.h"

namespace headrace {

// Settings of the loader with the rate that its model predicts of them (headrace/loading_advice.h), the fastest first:
// more threads, a cache. None where the loop waits for less than a tenth of its time, where the threads wait for each
// other, or where nothing is known. Cores are those of the machine that the run was made on, or else of `here`.
std::vector<Proposal> loading_proposals(const RunContents& run, const Machine& here);

// loop_waits_for_data: with what kind of waiting it is (reading, computing, threads that wait for each other), and the
// proposals; not where a profile's verdict over resources names one. low_hit_rate: of a training run fewer than half of
// at least 100 look-ups were in the cache, and whether it is too small or nothing is asked for twice.
std::vector<Finding> loading_findings(const RunContents& run, const Machine& here);

// {"cache_hit_rate", "hits", "misses", "memory_bytes", ...}; a text where no cache was asked.
nlohmann::ordered_json cache_stats(const RunContents& run);

}  // namespace headrace
