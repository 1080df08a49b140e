// How a metric is compared: which way is worse, on what scale, and how much of a change matters.
#pragma once

#include <map>
#include <set>
#include <string>

namespace headrace {

enum class Better { lower, higher };

struct MetricRule {
  std::string name;
  Better better = Better::lower;
  // Differences are compared in place of ratios: what is a share already (accuracy, hit_rate), or may be 0.
  bool is_absolute = false;
  double tolerance = 0.02;  // Of a ratio a share (0.02: 2 %), of a difference in the metric's own unit. Above 0.
};

// What somebody has said of metrics by name; the rest follows from the names. The default says nothing.
struct MetricChoices {
  std::set<std::string> only;  // Only these are compared, and each must be there; empty: all that the runs tell.
  std::set<std::string> higher_is_better;
  std::set<std::string> absolute;
  std::map<std::string, double> tolerances;
};

// Higher is better for accuracy and hit_rate, for names that begin or end with these (val_accuracy), and for names that
// end with _per_s or _per_second; of anything else less is better. accuracy and hit_rate are compared by differences,
// within 0.005; the rest by ratios, within 2 %.
MetricRule rule_of(const std::string& name, const MetricChoices& choices);

// Error{invalid_argument} names the metric: a tolerance is not above 0, or of a ratio not below 1.
void check_choices(const MetricChoices& choices);

// By how much the new value is worse, below 0 where it is better: the logarithm of a ratio, or a difference.
// Error{invalid_argument} names the metric: a value or the difference is not finite; one that is compared by a ratio is
// below 0, or one of the two alone is 0.
double effect_of(const MetricRule& rule, double old_value, double new_value);

// rule.tolerance on the scale of effect_of().
double tolerated_effect(const MetricRule& rule);

// An effect as people read it, with the sign of the metric: +0.03 of a ratio is 3 % more, -0.01 of a difference is 0.01
// less.
double change_of(const MetricRule& rule, double effect);
// The effect of which change_of() makes this change.
double effect_of_change(const MetricRule& rule, double change);

}  // namespace headrace
