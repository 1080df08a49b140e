#include "insight/tune/bets.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/fail.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

constexpr double kFullScore = 1.25;  // Scales beyond gain_min.
constexpr double kScaleAtFirst = 0.05;
constexpr std::size_t kPairsAtFirst = 4;
constexpr double kScaleMin = 0.004;
constexpr std::int64_t kPairsForetold = 10'000;

}  // namespace

Bets::Bets(double gain_min) : log_gain_min_(std::log1p(gain_min)) {}

void Bets::add(double log_ratio) {
  HEADRACE_CHECK(std::isfinite(log_ratio), "log ratio {}", log_ratio);
  const double score = std::clamp((log_ratio - log_gain_min_) / (kFullScore * scale()), -1.0, 1.0);
  for (std::size_t i = 0; i < kStakes.size(); ++i) {
    for_[i] += std::log1p(kStakes[i] * score);
    against_[i] += std::log1p(-kStakes[i] * score);
  }
  log_ratios_.push_back(log_ratio);
  if (outcome_ != Outcome::open) return;
  if (wealth_for() >= kWealthToKeep) {
    outcome_ = Outcome::pays;
  } else if (wealth_against() >= kWealthToDrop) {
    const bool is_slower = estimate_middle(log_ratios_, kTailError, kTailError).high < 0;
    outcome_ = is_slower ? Outcome::slower : Outcome::no_gain;
  }
}

double Bets::scale() const {
  if (log_ratios_.size() < kPairsAtFirst) return kScaleAtFirst;
  const double middle = median(log_ratios_);
  std::vector<double> distances;
  distances.reserve(log_ratios_.size());
  for (const double log_ratio : log_ratios_) distances.push_back(std::abs(log_ratio - middle));
  return std::max(kScaleMin, 1.4826 * median(std::move(distances)));
}

double Bets::wealth_of(const Logs& logs, double growth) {
  double sum = 0;
  for (const double log : logs) sum += std::exp(growth * log);
  return sum / static_cast<double>(logs.size());
}

double Bets::wealth_for() const {
  return wealth_of(for_);
}

double Bets::wealth_against() const {
  return wealth_of(against_);
}

// A mean of exponentials that is below a bound now crosses it at most once on its way up.
std::optional<std::int64_t> Bets::pairs_needed() const {
  if (outcome_ != Outcome::open || log_ratios_.empty()) return std::nullopt;
  const auto decided_after = [this](std::int64_t more) {
    const double growth = 1 + static_cast<double>(more) / static_cast<double>(log_ratios_.size());
    return wealth_of(for_, growth) >= kWealthToKeep || wealth_of(against_, growth) >= kWealthToDrop;
  };
  std::int64_t too_few = 0, enough = kPairsForetold;
  if (!decided_after(enough)) return std::nullopt;
  while (enough - too_few > 1) {
    const std::int64_t more = (too_few + enough) / 2;
    (decided_after(more) ? enough : too_few) = more;
  }
  return enough;
}

}  // namespace headrace
