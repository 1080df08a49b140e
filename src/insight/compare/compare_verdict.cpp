#include "insight/compare/compare_verdict.h"

#include <algorithm>

namespace headrace {

const char* to_string(MetricChange change) noexcept {
  switch (change) {
    case MetricChange::regressed:
      return "regressed";
    case MetricChange::improved:
      return "improved";
    case MetricChange::equivalent:
      return "equivalent";
    case MetricChange::inconclusive:
      return "inconclusive";
    case MetricChange::missing:
      return "missing";
  }
  return "";
}

Interval change_interval(const MetricRule& rule, const Estimate& effect) {
  const double low = change_of(rule, effect.low), high = change_of(rule, effect.high);
  return {change_of(rule, effect.center), std::min(low, high), std::max(low, high)};
}

MetricVerdict verdict_from(const MetricRule& rule, MetricChange change, double old_value, double new_value,
                           const Estimate& effect) {
  MetricVerdict verdict{.rule = rule, .change = change, .old_value = old_value, .new_value = new_value};
  verdict.interval = change_interval(rule, effect);
  return verdict;
}

bool CompareVerdict::is_failure() const {
  return !wrong_outputs.empty() || std::any_of(metrics.begin(), metrics.end(), [](const MetricVerdict& metric) {
    return metric.change == MetricChange::regressed || metric.change == MetricChange::missing;
  });
}

bool CompareVerdict::is_settled() const {
  return is_failure() || std::none_of(metrics.begin(), metrics.end(), [](const MetricVerdict& metric) {
           return metric.change == MetricChange::inconclusive;
         });
}

}  // namespace headrace
