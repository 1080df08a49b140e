#include "insight/compare/paired_metric.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/fail.h"
#include "insight/tune/quietness.h"

namespace headrace {
namespace {

constexpr double kScatterMin = 0.004;  // Below it Bets' scores do not follow the scatter.
constexpr double kPairsNeededMax = 10'000;
constexpr double kToleranceOfDifferences = 0.02;
constexpr double kBetMax = 1e100;  // Far beyond a full score; a quotient may overflow.

}  // namespace

PairedMetric::PairedMetric(MetricRule rule)
    : rule_(std::move(rule)),
      unit_(rule_.is_absolute ? rule_.tolerance / kToleranceOfDifferences : 1),
      at_none_(0),
      below_tolerance_(0),
      above_minus_tolerance_(0) {}

void PairedMetric::add(double old_value, double new_value) {
  add_effect(effect_of(rule_, old_value, new_value));
  old_values_.push_back(old_value);
  new_values_.push_back(new_value);
}

void PairedMetric::add_effect(double effect) {
  const auto in_units = [this](double moved) { return std::clamp(moved / unit_, -kBetMax, kBetMax); };
  const double tolerated = tolerated_effect(rule_);
  at_none_.add(in_units(effect));
  below_tolerance_.add(in_units(effect - tolerated));
  above_minus_tolerance_.add(in_units(effect + tolerated));
  effects_.push_back(effect);
}

double PairedMetric::evidence_worse() const {
  return median(effects_) >= tolerated_effect(rule_) ? at_none_.wealth_for() : 0;
}

double PairedMetric::evidence_better() const {
  return median(effects_) <= -tolerated_effect(rule_) ? at_none_.wealth_against() : 0;
}

bool PairedMetric::is_within_tolerance() const {
  return below_tolerance_.wealth_against() >= kWealthToDrop && above_minus_tolerance_.wealth_for() >= kWealthToDrop;
}

Estimate PairedMetric::effect() const {
  return estimate_middle(effects_, kTailError, kTailError);
}

double PairedMetric::scatter() const {
  HEADRACE_CHECK(!effects_.empty(), "the scatter of no pairs");
  const double middle = median(effects_);
  std::vector<double> distances;
  distances.reserve(effects_.size());
  for (const double effect : effects_) distances.push_back(std::abs(effect - middle));
  return 1.4826 * median(std::move(distances));
}

// What decides is the distance to no effect, where the middle is beyond the tolerance, or to the tolerance.
std::optional<std::int64_t> PairedMetric::pairs_needed() const {
  const double middle = std::abs(median(effects_)), tolerated = tolerated_effect(rule_);
  const double distance = middle >= tolerated ? middle : tolerated - middle;
  const double ratio = std::max(kScatterMin * unit_, scatter()) / distance;
  const double more = kPairsFactor * ratio * ratio - static_cast<double>(pairs());
  if (!(more <= kPairsNeededMax)) return std::nullopt;
  const std::int64_t fewest = std::max<std::int64_t>(1, kPairsToKeep - pairs());
  return std::max(fewest, static_cast<std::int64_t>(std::ceil(more)));
}

}  // namespace headrace
