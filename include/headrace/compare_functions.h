// Whether one of two functions is slower than the other: what `headrace compare` asks of processes, in this one.
//
// Each function is timed in samples of many calls. Samples come in pairs, one of each function, and a fair coin of its
// own decides for every pair which runs first. After each pair the judge of `headrace compare` looks at all of them,
// and the comparison ends as soon as it is decided (docs/decisions/0049-runs-are-compared-in-pairs.md). A function that
// is compared with itself is called regressed in at most 1 % of comparisons, and improved in at most 1 %, whatever the
// noise; both errors hold at every look.
#pragma once

#include <headrace/ledger.h>
#include <headrace/metric_change.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct CompareFunctionsOptions {
  std::int64_t pairs = 200;  // At most; at least 1. A difference takes 9 to be proven.
  double budget_s = 60;      // Seconds, above 0. Once they are used up no other pair begins; the first always runs.
  double sample_s = 0.01;    // 0.0001 to 60: what a sample takes at least. Longer ones scatter less, and cost more.
  std::int64_t warmup_calls = 3;          // 0 to 1,000,000 of each, not measured.
  double tolerance = 0.02;                // Above 0, below 1: a smaller change is none. 0.02: 2 %.
  std::uint64_t seed = 0;                 // Of the order within pairs; 0: by the clock.
  std::string old_name = "old function";  // In reports.
  std::string new_name = "new function";
};

// One pair of samples: seconds a call.
struct FunctionPair {
  double old_s = 0, new_s = 0;
  bool old_first = false;
};

struct FunctionComparison {
  MetricChange change = MetricChange::inconclusive;
  double old_s = 0, new_s = 0;  // Seconds a call, medians of the samples.
  // By how much the new one takes longer: 0.1 is 10 % more time, below 0 it is faster. 95 % of one look; the verdict is
  // not read from it. Of a single pair the ends are -1 and infinity.
  Interval slowdown;
  double scatter = 0;                        // Of the pairs' log ratios: 0.04 is 4 %.
  std::optional<std::int64_t> pairs_needed;  // More, to decide it; nullopt: it is decided, or more than 10,000.
  std::string why_undecided;                 // Which limit ended it; empty: it is decided.
  std::int64_t calls = 0;                    // In each sample of either function.
  std::vector<FunctionPair> pairs;           // As measured, in order; at least one.
  std::vector<std::pair<std::string, std::string>> machine;  // CPU, Cores, GPU.
  std::string written;                                       // "2026-11-20 15:30:00 UTC".
  CompareFunctionsOptions options;                           // With the seed that was drawn from.
};

using ComparedFunction = std::function<void()>;
using CompareClock = std::function<double()>;  // Monotonic seconds.

// Calls both functions in turns until it is decided. Warm-up, then the search for the number of calls that a sample
// takes (some 4 * sample_s each), then pairs. Both functions have the same number of calls: as many as take the faster
// one sample_s, and at most those that take the slower one 100 * sample_s.
//
// A function does the same work in every call, and all of it before it returns: one that starts work on a device waits
// for that. C++ compilers drop work whose result nobody uses.
// Runs on the calling thread; two comparisons at once would time each other. An exception of a function passes through
// unchanged, and nothing is judged. Error{invalid_argument}: a function is empty, an option is out of its range, or the
// clock stands still. `clock`, by default the system's, is for tests.
FunctionComparison compare_functions(const ComparedFunction& old_function, const ComparedFunction& new_function,
                                     const CompareFunctionsOptions& options = {}, CompareClock clock = {});

// Format headrace-compare-functions, version 1: what `headrace compare --json` writes of its only metric call_s, with
// every sample.
std::string json_text(const FunctionComparison& comparison);
// The table that `headrace compare` prints.
std::string report_text(const FunctionComparison& comparison);

}  // namespace headrace
