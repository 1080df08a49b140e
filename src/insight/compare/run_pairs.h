// Two arms that are run in pairs, and what their runs say so far.
//
// Which of the two runs first in a pair must be drawn by a fair coin a pair; then the verdict may be asked for after
// every pair, and running stopped as soon as it is settled: its error stays what it is. Of everything that is called
// regressed or improved, over all metrics, at most the share `false_discovery_rate` is so wrongly, in expectation
// (insight/compare/false_discovery.h). Decision 49.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "insight/compare/compare_verdict.h"
#include "insight/compare/metric_rule.h"
#include "insight/compare/output_guard.h"
#include "insight/compare/paired_metric.h"
#include "insight/compare/run_figures.h"
#include "insight/compare/stage_changes.h"

namespace headrace {

inline constexpr double kFalseDiscoveryRate = 0.02;

// What the evidence of metrics that were measured in the same pairs says of each, in order. With at least one pair.
std::vector<MetricChange> decide(const std::vector<PairedMetric>& metrics, double false_discovery_rate);
// Nothing is left to find out: one has regressed, or none is inconclusive.
bool are_settled(const std::vector<MetricChange>& changes);
// The fair coin of a pair, counted from 0: whether OLD runs first.
bool old_runs_first(std::uint64_t seed, std::int64_t pair);

class RunPairs {
 public:
  // Error{invalid_argument}: check_choices(), or a rate that is not above 0 and below 1.
  explicit RunPairs(MetricChoices choices, double false_discovery_rate = kFalseDiscoveryRate);

  // Error{invalid_argument}: in the first pair the two have no metric in common, or OLD tells nothing of what was asked
  // for; later no metric is left that each run told; and those of effect_of().
  void add(const RunFigures& old_run, const RunFigures& new_run);

  std::int64_t pairs() const noexcept { return pairs_; }
  const std::vector<PairedMetric>& metrics() const noexcept { return metrics_; }
  bool is_settled() const;
  CompareVerdict verdict() const;  // With at least one pair.

 private:
  void begin(const RunFigures& old_run, const RunFigures& new_run);
  // Metrics that a run of this pair lacks are missing from now on, and their earlier pairs of no use.
  void leave_out_missing(const RunFigures& old_run, const RunFigures& new_run);
  // Whether one of the two cannot have this metric, which is a remark and no failure then.
  bool leave_out_inapplicable(const std::string& name, const RunFigures& old_run, const RunFigures& new_run);
  bool is_wanted(const std::string& name) const { return choices_.only.empty() || choices_.only.contains(name); }

  MetricChoices choices_;
  double false_discovery_rate_;
  std::int64_t pairs_ = 0;
  std::vector<PairedMetric> metrics_;  // By name; each has all pairs.
  std::set<std::string> missing_;      // That a run did not tell.
  std::set<std::string> only_new_;
  std::map<std::string, std::string> not_compared_;  // Each with its remark.
  std::set<std::string> seen_at_times_;              // From outside, in some runs alone.
  StageChanges stages_;
  OutputGuard outputs_;
};

}  // namespace headrace
