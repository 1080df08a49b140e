// What a comparison of two arms says: plain values, which the reports show.
#pragma once

#include <headrace/ledger.h>
#include <headrace/metric_change.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "insight/compare/metric_rule.h"
#include "insight/tune/statistics.h"

namespace headrace {

struct MetricVerdict {
  MetricRule rule;
  MetricChange change = MetricChange::inconclusive;
  // Medians over the runs; nullopt where the metric is missing.
  std::optional<double> old_value, new_value;
  // 95 % of one look, as change_of() gives it; the verdict is not read from it. nullopt where the metric is missing.
  std::optional<Interval> interval;
  double scatter = 0;  // Of the effects of pairs.
  // Of an inconclusive one; nullopt: more than 10,000, or it is decided.
  std::optional<std::int64_t> pairs_needed;
};

// `effect`, as effect_of() gives it, on the scale of change_of().
Interval change_interval(const MetricRule& rule, const Estimate& effect);

// Without scatter and pairs_needed; `effect` as effect_of() gives it.
MetricVerdict verdict_from(const MetricRule& rule, MetricChange change, double old_value, double new_value,
                           const Estimate& effect);

// By how much a step's part has grown, in shares of the old step.
struct StageChange {
  std::string name;
  double old_s = 0, new_s = 0;  // Seconds a step, medians over the runs.
  Interval share;               // 95 % for all stages together.
  bool has_changed = false;     // The interval leaves 0 out.
};

struct CompareVerdict {
  std::int64_t pairs = 0;  // 0: of stored runs.
  std::vector<MetricVerdict> metrics;
  std::vector<StageChange> stages;  // That both arms tell, the largest change first.
  // They are of one further pair, which no metric here is of.
  bool stages_are_of_one_pair = false;
  bool has_outputs = false;   // OLD tells some, in pairs enough to judge NEW's.
  std::string wrong_outputs;  // Why NEW's outputs are wrong; empty: they are not.
  std::vector<std::string> remarks;

  // A regression, a missing metric, or wrong outputs.
  bool is_failure() const;
  // A failure, or no metric is inconclusive: nothing is left to find out.
  bool is_settled() const;
};

}  // namespace headrace
