#include "insight/compare/resampling.h"

#include <headrace/random.h>

#include <algorithm>
#include <cmath>

#include "core/base/fail.h"

namespace headrace {
namespace {

bool has(const std::vector<MetricChange>& changes, MetricChange wanted) {
  return std::find(changes.begin(), changes.end(), wanted) != changes.end();
}

// What is put into each pair, by metric.
std::vector<double> slowdowns(const std::vector<MetricRule>& rules, double slowdown) {
  const auto is_time = [](const MetricRule& rule) {
    return !rule.is_absolute && (rule.name.ends_with("_s") || rule.name.ends_with("_per_second"));
  };
  const bool has_times = std::any_of(rules.begin(), rules.end(), is_time);
  std::vector<double> effects;
  for (const MetricRule& rule : rules) {
    effects.push_back((has_times ? is_time(rule) : !rule.is_absolute) ? std::log1p(slowdown) : 0);
  }
  return effects;
}

struct Ended {
  std::vector<MetricChange> changes;
  std::int64_t pairs = 0;
};

Ended run_to_end(const std::vector<PairEffects>& recorded, const std::vector<MetricRule>& rules,
                 const ResamplePlan& plan, std::int64_t number) {
  std::vector<PairedMetric> metrics(rules.begin(), rules.end());
  const std::vector<double> added = slowdowns(rules, plan.slowdown);
  SampleRandom random(plan.seed, number, 0);
  Ended ended;
  while (ended.pairs < plan.pairs_max) {
    const PairEffects& pair = recorded[random.below(static_cast<std::uint32_t>(recorded.size()))];
    const double sign = random.below(2) == 0 ? 1 : -1;
    for (std::size_t i = 0; i < metrics.size(); ++i) metrics[i].add_effect(sign * pair[i] + added[i]);
    ++ended.pairs;
    ended.changes = decide(metrics, plan.false_discovery_rate);
    if (are_settled(ended.changes)) break;
  }
  return ended;
}

}  // namespace

std::vector<PairEffects> recorded_pairs(const std::vector<PairedMetric>& metrics) {
  std::vector<PairEffects> pairs(metrics.empty() ? 0 : metrics.front().effects().size());
  for (const PairedMetric& metric : metrics) {
    HEADRACE_CHECK(metric.effects().size() == pairs.size(), "{} of {} pairs", metric.effects().size(), pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i].push_back(metric.effects()[i]);
  }
  return pairs;
}

Resampled resample(const std::vector<PairEffects>& recorded, const std::vector<MetricRule>& rules,
                   const ResamplePlan& plan) {
  HEADRACE_CHECK(!recorded.empty() && !rules.empty() && plan.comparisons > 0 && plan.pairs_max > 0,
                 "{} pairs, {} metrics, {} comparisons of {} pairs", recorded.size(), rules.size(), plan.comparisons,
                 plan.pairs_max);
  Resampled result{.comparisons = plan.comparisons};
  for (std::int64_t number = 0; number < plan.comparisons; ++number) {
    const Ended ended = run_to_end(recorded, rules, plan, number);
    if (has(ended.changes, MetricChange::regressed)) {
      ++result.regressed;
    } else if (has(ended.changes, MetricChange::improved)) {
      ++result.improved;
    }
    result.pairs += static_cast<double>(ended.pairs) / static_cast<double>(plan.comparisons);
  }
  return result;
}

}  // namespace headrace
