#include "insight/compare/metric_rule.h"

#include <cmath>
#include <string_view>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kShareTolerance = 0.005;

bool is_named(std::string_view name, std::string_view word) {
  return name.starts_with(word) || name.ends_with(word);
}

bool is_share(std::string_view name) {
  return is_named(name, "accuracy") || is_named(name, "hit_rate");
}

// Of effects, which are above 0 where it is worse.
double sign_of(const MetricRule& rule) {
  return rule.better == Better::lower ? 1 : -1;
}

}  // namespace

MetricRule rule_of(const std::string& name, const MetricChoices& choices) {
  MetricRule rule{.name = name};
  const bool is_rate = name.ends_with("_per_s") || name.ends_with("_per_second");
  if (is_share(name) || is_rate || choices.higher_is_better.contains(name)) rule.better = Better::higher;
  if (is_share(name) || choices.absolute.contains(name)) rule.is_absolute = true;
  if (is_share(name)) rule.tolerance = kShareTolerance;
  if (const auto said = choices.tolerances.find(name); said != choices.tolerances.end()) rule.tolerance = said->second;
  return rule;
}

void check_choices(const MetricChoices& choices) {
  for (const auto& [name, tolerance] : choices.tolerances) {
    const bool is_absolute = rule_of(name, choices).is_absolute;
    if (tolerance > 0 && std::isfinite(tolerance) && (is_absolute || tolerance < 1)) continue;
    fail(ErrorCode::invalid_argument, "compare: the tolerance of {} must be above 0{}, found {}", name,
         is_absolute ? "" : " and below 1, as it is a share", tolerance);
  }
}

double effect_of(const MetricRule& rule, double old_value, double new_value) {
  if (!std::isfinite(old_value) || !std::isfinite(new_value) || !std::isfinite(new_value - old_value)) {
    fail(ErrorCode::invalid_argument,
         "compare: {} is {} of OLD and {} of NEW; wanted finite numbers with a finite difference", rule.name, old_value,
         new_value);
  }
  const double sign = sign_of(rule);
  if (rule.is_absolute) return sign * (new_value - old_value);
  if (old_value == 0 && new_value == 0) return 0;
  if (!(old_value > 0 && new_value > 0)) {
    fail(ErrorCode::invalid_argument,
         "compare: {} is {} of OLD and {} of NEW, and a ratio needs numbers above 0; --absolute {} compares the "
         "difference",
         rule.name, old_value, new_value, rule.name);
  }
  return sign * (std::log(new_value) - std::log(old_value));  // Their ratio may overflow.
}

double tolerated_effect(const MetricRule& rule) {
  return rule.is_absolute ? rule.tolerance : std::log1p(rule.tolerance);
}

double change_of(const MetricRule& rule, double effect) {
  const double sign = sign_of(rule);
  return rule.is_absolute ? sign * effect : std::expm1(sign * effect);
}

double effect_of_change(const MetricRule& rule, double change) {
  return sign_of(rule) * (rule.is_absolute ? change : std::log1p(change));
}

}  // namespace headrace
