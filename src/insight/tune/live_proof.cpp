#include "insight/tune/live_proof.h"

#include <headrace/random.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "insight/tune/statistics.h"

namespace headrace {
namespace {

constexpr double kCarryOverShare = 0.25;   // Of the change's effect.
constexpr double kCarryOverError = 0.005;  // Of each end.
constexpr std::size_t kCarryOverBlocks = 4;

}  // namespace

bool change_leads(std::uint64_t seed, std::int64_t number) noexcept {
  return SampleRandom(seed, number, /*index=*/1).below(2) == 0;
}

std::int64_t pairs_of_proof(std::int64_t pairs_in_race) noexcept {
  return std::max(kPairsToKeep, pairs_in_race);
}

LiveProof::LiveProof(Settings without, Settings with, double gain_min)
    : settings_{std::move(without), std::move(with)}, record_(gain_min), effect_min_(std::log1p(gain_min)) {}

void LiveProof::add(const LivePair& pair, bool change_led, bool goes_on) {
  using Block = LivePair::Block;
  const Block with = change_led ? Block::first : Block::second, without = change_led ? Block::second : Block::first;
  record_.add(change_led ? -pair.log_ratio() : pair.log_ratio());
  const std::array blocks{without, with};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (block_s_[i].size() < kBlocksListed) block_s_[i].push_back(pair.unit_s(blocks[i]));
    arms_[i].seconds += pair.seconds(blocks[i]);
    arms_[i].wait_s += pair.wait_s(blocks[i]);
  }
  const auto before = std::exchange(unsettled_, change_led ? std::optional(pair.ratio(without)) : std::nullopt);
  if (const auto settling = pair.log_settling(without)) {
    if (looks_for_carry_over()) settling_.push_back(*settling);
  } else if (before && !change_led && goes_on && std::ssize(settling_) < kSettlingPairs) {
    settling_.push_back(std::log(*before / pair.ratio(without)));
  }
}

bool LiveProof::may_wait() const noexcept {
  const auto waits = [](const Arm& arm) { return arm.wait_share() > kWaitShare; };
  return arms_[0].seconds == 0 || std::any_of(arms_.begin(), arms_.end(), waits);
}

std::optional<double> LiveProof::carry_over() const {
  if (settling_.size() < kCarryOverBlocks) return std::nullopt;
  const Estimate found = estimate_middle(settling_, kCarryOverError, kCarryOverError);
  const double effect = std::max(std::abs(record_.middle().value_or(0)), effect_min_);
  const bool is_chance = found.low <= 0 && found.high >= 0;
  if (is_chance || std::abs(found.center) < kCarryOverShare * effect) return std::nullopt;
  return found.center;
}

}  // namespace headrace
