// One metric of two arms that were run in pairs: the evidence so far that the new one is worse, better, or alike.
//
// Three Bets (insight/tune/bets.h) on the effects of the pairs: on these, and on these moved by the tolerance to either
// side. They need what a fair coin a pair gives: which arm runs first is drawn for each pair by itself. Their wealth is
// an e-value at every look, whatever the noise. Differences are bet on in units in which the tolerance is 0.02, as the
// scales of Bets are those of ratios.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "insight/compare/metric_rule.h"
#include "insight/tune/bets.h"
#include "insight/tune/statistics.h"

namespace headrace {

class PairedMetric {
 public:
  explicit PairedMetric(MetricRule rule);

  // Of the next pair. The errors of effect_of(); nothing is added then.
  void add(double old_value, double new_value);
  // The same by its effect alone, finite; old_values() and new_values() are without it.
  void add_effect(double effect);

  const MetricRule& rule() const noexcept { return rule_; }
  std::int64_t pairs() const noexcept { return at_none_.pairs(); }
  const std::vector<double>& effects() const noexcept { return effects_; }  // Above 0: the new one is worse.
  const std::vector<double>& old_values() const noexcept { return old_values_; }
  const std::vector<double>& new_values() const noexcept { return new_values_; }

  // E-values against "not worse" and "not better"; 0 where the middle of the effects is not beyond the tolerance in
  // that direction. With at least one pair.
  double evidence_worse() const;
  double evidence_better() const;
  // Proven in both directions, in at most 5 % of cases each wrongly: the effect is within the tolerance.
  bool is_within_tolerance() const;

  // Middle and 95 % interval of the effects. Takes 50 us of 12 pairs. With at least one pair.
  Estimate effect() const;
  // 1.4826 times the median distance from the median: of a normal distribution the standard deviation.
  double scatter() const;
  // Further pairs that decide it, if their scatter and their middle are those so far; at least 1. nullopt: more than
  // 10,000.
  std::optional<std::int64_t> pairs_needed() const;

 private:
  MetricRule rule_;
  double unit_;  // Of bets, in effects.
  Bets at_none_, below_tolerance_, above_minus_tolerance_;
  std::vector<double> effects_, old_values_, new_values_;
};

}  // namespace headrace
