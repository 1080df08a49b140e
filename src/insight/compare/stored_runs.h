// Runs that were made before, as files: a baseline that is kept, and a verdict on two of them.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "insight/compare/compare_verdict.h"
#include "insight/compare/metric_rule.h"
#include "insight/compare/run_figures.h"

namespace headrace {

// Fewer runs of an arm give no interval that a rank test could bound.
inline constexpr std::size_t kStoredRunsMin = 4;

struct StoredRuns {
  std::string label;                                         // "NEW main@1a2b3c4d", or the path.
  std::string written;                                       // UTC.
  std::string build;                                         // Of headrace, where it was measured.
  std::string config;                                        // What was run.
  std::vector<std::pair<std::string, std::string>> machine;  // CPU, Cores, GPU; empty: not told.
  std::vector<RunFigures> runs;
};

// Written whole or not at all, as JSON for people, format headrace-measurements, version 1.
void write_stored_runs(const std::filesystem::path& path, const StoredRuns& runs);

// What `path` holds: a file of write_stored_runs(), a profile.json or result.json, a file of JSON lines (.jsonl), the
// folder of a run, or one with the folders of several. Error{not_found}: none of these; Error{corrupt_data} names the
// file, as do runs of several machines.
StoredRuns read_stored_runs(const std::filesystem::path& path);
// Whether read_stored_runs() would find something there; reads nothing.
bool is_stored(const std::filesystem::path& path);

// A verdict on runs that were not taken in turns, and so weaker than it looks, which a remark says: what the machine
// did meanwhile counts for one arm alone. A metric is regressed where all of its interval (the difference of any two
// runs, Mann and Whitney's ranks, 95 % for all metrics together) lies beyond the tolerance, equivalent where all of it
// lies within. Error{invalid_argument}: fewer than kStoredRunsMin runs of an arm, other machines, no common metric.
CompareVerdict judge_stored(const StoredRuns& old_runs, const StoredRuns& new_runs, const MetricChoices& choices);

}  // namespace headrace
