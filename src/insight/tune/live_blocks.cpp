#include "insight/tune/live_blocks.h"

#include <algorithm>

#include "insight/tune/unit_times.h"

namespace headrace {
namespace {

constexpr double kShortUnit = 1e-3;  // Seconds. Shorter ones take some until caches and threads are as they will be.
constexpr std::int64_t kShortUnitWashOut = 4;
constexpr std::int64_t kFirstVisit = 2;  // Units more: kernels are chosen, memory is allocated.
constexpr std::int64_t kGapUnits = 3;    // In which what carries over for a few units is used up.
constexpr std::int64_t kUnitsMax = 1024;
constexpr double kWaitShare = 0.03;
// In either block: of both together half of it, where the other does not wait at all.
constexpr double kWaitShareOfPairs = 0.015;
constexpr std::int64_t kPairsOfWaiting = 6;
constexpr std::int64_t kQueueUnknown = 8;  // Units, where a change carries over and nobody knows the queue.
constexpr double kSwitchShare = 0.1;       // Of a block.
constexpr std::int64_t kSwitchUnitsMax = 64;

}  // namespace

void LiveBlocks::plan(double unit_s, double wait_share) {
  unit_s_ = unit_s;
  units_a_block_ = 1;
  while (
      !loop_.agree(static_cast<double>(units_a_block_) * unit_s >= kLiveBlockSeconds || units_a_block_ >= kUnitsMax)) {
    units_a_block_ *= 2;
  }
  wash_out_ = loop_.agree(unit_s >= kShortUnit) ? 1 : kShortUnitWashOut;
  queued_units_ = std::max<std::int64_t>(0, loop_.queued_units());
  waits_for_data_ = !loop_.agree(wait_share <= kWaitShare);
}

BlockUnits LiveBlocks::units(const Block& block) {
  BlockUnits units{wash_out_, units_a_block_, 0, 0};
  const std::int64_t queue = queued_units_ > 0 ? queued_units_ : block.carries_over ? kQueueUnknown : 0;
  if (block.carries_over || (waits_for_data_ && queue > 0)) {
    units.wash_out = std::max(units.wash_out, queue);
    units.measured = std::max(units.measured, 2 * queue);
  }
  while (!loop_.agree(block.switch_s <= kSwitchShare * unit_s_ * static_cast<double>(units.measured) ||
                      units.measured >= kSwitchUnitsMax)) {
    units.measured *= 2;
  }
  // Without a switch there is nothing to wash out; which of a pair's blocks is spared it, the coin has decided.
  if (!block.switches) units.wash_out = 0;
  if (block.has_new_change) units.wash_out += kFirstVisit;
  if (block.settles) {
    units.gap = kGapUnits;
    units.settled = units.measured;
  }
  return units;
}

bool LiveBlocks::note(const LivePair& pair) {
  seconds_ += pair.seconds();
  wait_s_ += pair.wait_s();
  if (waits_for_data_ || queued_units_ == 0 || ++pairs_ < kPairsOfWaiting) return false;
  waits_for_data_ = !loop_.agree(wait_s_ <= kWaitShareOfPairs * seconds_);
  return waits_for_data_;
}

}  // namespace headrace
