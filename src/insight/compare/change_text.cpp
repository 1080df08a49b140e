#include <fmt/format.h>

#include <cmath>

#include "insight/compare/detail/change_text.h"

namespace headrace {
namespace {

std::string seconds_text(double seconds) {
  const double size = std::abs(seconds);
  if (size < 1e-3) return fmt::format("{:.4g} us", seconds * 1e6);
  return size < 1 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} s", seconds);
}

std::string one_change(const MetricRule& rule, double change) {
  return rule.is_absolute ? fmt::format("{:+.4g}", change) : fmt::format("{:+.1f} %", change * 100);
}

std::string share_text(const Interval& share) {
  const auto percent = [](double value) { return fmt::format("{:+.1f} %", value * 100); };
  if (!std::isfinite(share.low) || !std::isfinite(share.high)) {
    return percent(share.median) + " of a step (too few pairs for an interval)";
  }
  return fmt::format("{} of a step (95 %: {} to {})", percent(share.median), percent(share.low), percent(share.high));
}

}  // namespace

std::string pairs_text(const CompareVerdict& verdict) {
  if (verdict.pairs == 0) return "stored runs";
  return fmt::format("{} pair{}", verdict.pairs, verdict.pairs == 1 ? "" : "s");
}

std::string value_text(const MetricVerdict& metric, const std::optional<double>& value) {
  if (!value) return "unavailable";
  const std::string& name = metric.rule.name;
  if (name.ends_with("_per_s")) return fmt::format("{:.4g} /s", *value);
  if (name.ends_with("_s")) return seconds_text(*value);
  if (name.ends_with("_bytes")) return fmt::format("{:.2f} MiB", *value / (1 << 20));
  return fmt::format("{:.4g}", *value);
}

std::string interval_text(const MetricRule& rule, const std::optional<Interval>& interval) {
  if (!interval) return "unavailable";
  const std::string middle = one_change(rule, interval->median);
  if (!std::isfinite(interval->low) || !std::isfinite(interval->high)) {
    return middle + " (too few runs for an interval)";
  }
  return fmt::format("{} (95 %: {} to {})", middle, one_change(rule, interval->low), one_change(rule, interval->high));
}

std::string change_text(const MetricVerdict& metric) {
  switch (metric.change) {
    case MetricChange::missing:
      return "missing: not told by every run, which counts as a failure";
    case MetricChange::inconclusive:
      if (!metric.pairs_needed) return "inconclusive";
      return fmt::format("inconclusive: about {} pair{} more would decide it", *metric.pairs_needed,
                         *metric.pairs_needed == 1 ? "" : "s");
    case MetricChange::equivalent:
      return fmt::format("equivalent: within {}", metric.rule.is_absolute
                                                      ? fmt::format("{:.4g}", metric.rule.tolerance)
                                                      : fmt::format("{:.4g} %", metric.rule.tolerance * 100));
    case MetricChange::regressed:
    case MetricChange::improved:
      break;
  }
  return to_string(metric.change);
}

std::string stage_text(const StageChange& stage) {
  return fmt::format("{} {}, {} to {}", stage.name, share_text(stage.share), seconds_text(stage.old_s),
                     seconds_text(stage.new_s));
}

std::string drift_text(const MetricDrift& found) {
  const Drift& drift = found.drift;
  const Interval interval = change_interval(found.rule, {drift.effect, drift.low, drift.high});
  const std::string where = found.builds == 1
                                ? fmt::format("at {}, after {}", found.last_label, found.first_label)
                                : fmt::format("over {} builds, from {} to {}; most of it at {}: {}", found.builds,
                                              found.first_label, found.last_label, found.largest_label,
                                              one_change(found.rule, change_of(found.rule, drift.largest_effect)));
  return fmt::format("{} {} {}", found.rule.name, interval_text(found.rule, interval), where);
}

}  // namespace headrace
