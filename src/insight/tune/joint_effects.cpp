#include "insight/tune/joint_effects.h"

#include <algorithm>
#include <cmath>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kEffect = 0.2, kNoise = 0.1;  // Standard deviations, of log time: what is expected of them.
constexpr double kBurst = 3;                   // Times what is expected of a pair: it is taken to be no further off.

}  // namespace

JointEffects::JointEffects(std::size_t count) : effects_(count, 0.0) {
  doubt();
}

void JointEffects::doubt() {
  const std::size_t count = effects_.size();
  covariances_.assign(count * count, 0.0);
  for (std::size_t change = 0; change < count; ++change) covariance(change, change) = kEffect * kEffect;
}

double JointEffects::expected(std::span<const Turn> turns) const {
  double sum = 0;
  for (const Turn& turn : turns) sum += turn.sign * effects_[turn.change];
  return sum;
}

void JointEffects::add(std::span<const Turn> turns, double log_ratio) {
  HEADRACE_CHECK(std::isfinite(log_ratio), "log ratio {}", log_ratio);  // It would stay in all that follows.
  const std::size_t count = effects_.size();
  std::vector<double> shared(count, 0.0);  // Covariance of each effect with the pair's log ratio.
  for (std::size_t change = 0; change < count; ++change) {
    for (const Turn& turn : turns) shared[change] += turn.sign * covariance(change, turn.change);
  }
  double variance = kNoise * kNoise;
  for (const Turn& turn : turns) variance += turn.sign * shared[turn.change];
  const double most = kBurst * std::sqrt(variance);
  const double surprise = std::clamp(log_ratio - expected(turns), -most, most);
  for (std::size_t one = 0; one < count; ++one) {
    effects_[one] += shared[one] / variance * surprise;
    for (std::size_t other = 0; other < count; ++other)
      covariance(one, other) -= shared[one] * shared[other] / variance;
  }
}

}  // namespace headrace
