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

LiveProof::LiveProof(Settings without, Settings with, double gain_min)
    : settings_{std::move(without), std::move(with)}, record_(gain_min), effect_min_(std::log1p(gain_min)) {}

void LiveProof::add(const LivePair& pair, bool change_led) {
  using Block = LivePair::Block;
  const Block with = change_led ? Block::first : Block::second, without = change_led ? Block::second : Block::first;
  record_.add(change_led ? -pair.log_ratio() : pair.log_ratio());
  if (block_s_[0].size() < kBlocksListed) {
    block_s_[0].push_back(pair.unit_s(without));
    block_s_[1].push_back(pair.unit_s(with));
  }
  if (const auto settling = pair.log_settling(without); settling && looks_for_carry_over()) {
    settling_.push_back(*settling);
  }
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
