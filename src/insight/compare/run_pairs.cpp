#include "insight/compare/run_pairs.h"

#include <headrace/random.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"
#include "insight/compare/false_discovery.h"

namespace headrace {
namespace {

std::string joined(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string remarks_text(const std::map<std::string, std::string>& remarks) {
  std::string text;
  for (const auto& [name, remark] : remarks) text += "; " + remark;
  return text;
}

MetricVerdict verdict_of(const PairedMetric& metric, MetricChange change) {
  MetricVerdict verdict =
      verdict_from(metric.rule(), change, median(metric.old_values()), median(metric.new_values()), metric.effect());
  verdict.scatter = metric.scatter();
  if (change == MetricChange::inconclusive) verdict.pairs_needed = metric.pairs_needed();
  return verdict;
}

MetricChange change_of_metric(const PairedMetric& metric, bool is_worse, bool is_better) {
  if (is_worse) return MetricChange::regressed;
  if (is_better) return MetricChange::improved;
  return metric.is_within_tolerance() ? MetricChange::equivalent : MetricChange::inconclusive;
}

}  // namespace

std::vector<MetricChange> decide(const std::vector<PairedMetric>& metrics, double false_discovery_rate) {
  std::vector<double> evidence;
  for (const PairedMetric& metric : metrics) {
    evidence.push_back(metric.evidence_worse());
    evidence.push_back(metric.evidence_better());
  }
  const std::vector<bool> rejected = reject(evidence, false_discovery_rate);
  std::vector<MetricChange> changes;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    changes.push_back(change_of_metric(metrics[i], rejected[2 * i], rejected[2 * i + 1]));
  }
  return changes;
}

bool are_settled(const std::vector<MetricChange>& changes) {
  const auto is_one = [&](MetricChange wanted) {
    return std::find(changes.begin(), changes.end(), wanted) != changes.end();
  };
  return is_one(MetricChange::regressed) || !is_one(MetricChange::inconclusive);
}

bool old_runs_first(std::uint64_t seed, std::int64_t pair) {
  return SampleRandom(seed, 0, pair).below(2) == 0;
}

RunPairs::RunPairs(MetricChoices choices, double false_discovery_rate)
    : choices_(std::move(choices)), false_discovery_rate_(false_discovery_rate) {
  check_choices(choices_);
  if (!(false_discovery_rate > 0 && false_discovery_rate < 1)) {
    fail(ErrorCode::invalid_argument, "compare: the false discovery rate must be above 0 and below 1, found {}",
         false_discovery_rate);
  }
}

void RunPairs::begin(const RunFigures& old_run, const RunFigures& new_run) {
  for (const auto& [name, value] : old_run.metrics) {
    if (is_wanted(name) && new_run.metrics.contains(name)) metrics_.emplace_back(rule_of(name, choices_));
  }
  for (const std::string& name : choices_.only) {
    if (old_run.metrics.contains(name) && new_run.metrics.contains(name)) continue;
    if (!leave_out_inapplicable(name, old_run, new_run)) missing_.insert(name);
  }
  const bool is_missed = std::any_of(choices_.only.begin(), choices_.only.end(),
                                     [&](const std::string& name) { return old_run.metrics.contains(name); });
  if (metrics_.empty() && !is_missed) {
    fail(ErrorCode::invalid_argument, "compare: OLD and NEW have no metric in common{}; OLD tells {}, NEW {}{}",
         choices_.only.empty() ? "" : " of those asked for", joined(old_run.metrics), joined(new_run.metrics),
         remarks_text(not_compared_));
  }
}

bool RunPairs::leave_out_inapplicable(const std::string& name, const RunFigures& old_run, const RunFigures& new_run) {
  const std::string why = why_not_compared(name, old_run, new_run);
  if (!why.empty()) not_compared_.try_emplace(name, why);
  return !why.empty();
}

void RunPairs::leave_out_missing(const RunFigures& old_run, const RunFigures& new_run) {
  const auto miss = [&](const std::string& name) {
    if (leave_out_inapplicable(name, old_run, new_run)) return;
    const bool is_seen = old_run.seen_from_outside.contains(name) || new_run.seen_from_outside.contains(name);
    (is_seen && choices_.only.empty() ? seen_at_times_ : missing_).insert(name);
  };
  for (const auto& [name, value] : old_run.metrics) {
    if (is_wanted(name) && !new_run.metrics.contains(name)) miss(name);
  }
  for (const auto& [name, value] : new_run.metrics) {
    if (!is_wanted(name) || old_run.metrics.contains(name)) continue;
    if (!leave_out_inapplicable(name, old_run, new_run)) only_new_.insert(name);
  }
  std::erase_if(metrics_, [&](const PairedMetric& metric) {
    const std::string& name = metric.rule().name;
    const bool is_told = old_run.metrics.contains(name) && new_run.metrics.contains(name);
    if (!is_told) miss(name);
    return !is_told;
  });
}

void RunPairs::add(const RunFigures& old_run, const RunFigures& new_run) {
  if (pairs_ == 0) begin(old_run, new_run);
  leave_out_missing(old_run, new_run);
  if (metrics_.empty() && missing_.empty()) {
    fail(ErrorCode::invalid_argument, "compare: no metric is told by every run; the last of OLD tells {}, of NEW {}{}",
         joined(old_run.metrics), joined(new_run.metrics), remarks_text(not_compared_));
  }
  for (PairedMetric& metric : metrics_) {
    const std::string& name = metric.rule().name;
    metric.add(old_run.metrics.at(name), new_run.metrics.at(name));
  }
  stages_.add(old_run.stage_s, new_run.stage_s);
  outputs_.add(old_run.outputs, new_run.outputs);
  ++pairs_;
}

bool RunPairs::is_settled() const {
  if (pairs_ == 0) return false;
  if (!missing_.empty() || !outputs_.fault().empty()) return true;
  if (outputs_.is_told() && !outputs_.is_judged()) return false;
  return are_settled(decide(metrics_, false_discovery_rate_));
}

CompareVerdict RunPairs::verdict() const {
  HEADRACE_CHECK(pairs_ > 0, "a verdict on no pairs");
  CompareVerdict verdict{.pairs = pairs_};
  const std::vector<MetricChange> changes = decide(metrics_, false_discovery_rate_);
  for (std::size_t i = 0; i < metrics_.size(); ++i) verdict.metrics.push_back(verdict_of(metrics_[i], changes[i]));
  for (const std::string& name : missing_) {
    verdict.metrics.push_back({.rule = rule_of(name, choices_), .change = MetricChange::missing});
  }
  verdict.stages = stages_.changes();
  outputs_.tell(verdict);
  for (const auto& [name, remark] : not_compared_) verdict.remarks.push_back(remark);
  for (const std::string& name : only_new_) {
    verdict.remarks.push_back(fmt::format("{} is told by NEW alone: not compared", name));
  }
  for (const std::string& name : seen_at_times_) {
    verdict.remarks.push_back(fmt::format("{} was seen from outside in some runs alone: not compared", name));
  }
  return verdict;
}

}  // namespace headrace
