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
// In either block: of both together half of it, where the other does not wait at all.
constexpr double kWaitShareOfPairs = kWaitShare / 2;
constexpr std::int64_t kPairsOfWaiting = 6;
constexpr std::int64_t kQueueUnknown = 8;  // Units, where a change carries over and nobody knows the queue.
constexpr std::int64_t kQueuesMeasured = 2;
constexpr std::int64_t kAheadMax = 64;  // Units that the host may be ahead and still be waited for.
constexpr double kLongShare = 0.25;     // What long pairs take more, of what the usual ones beside them take.
constexpr double kSwitchShare = 0.1;    // Of a block.
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
  ask_queue(false);
  ask_ahead();
  set_waiting(wait_share);
}

void LiveBlocks::set_waiting(double wait_share) {
  waits_for_data_ = queue_ > 0 && !loop_.agree(wait_share <= kWaitShare);
  pairs_ = 0;
  seconds_ = wait_s_ = 0;
}

BlockUnits LiveBlocks::units(const Block& block) {
  BlockUnits units{wash_out_, std::max(units_a_block_, block.measured_min), 0, 0};
  const bool is_long = block.carries_over || block.may_wait || waits_for_data_;
  if (is_long || block.switches_queue) {
    const std::int64_t queue = ask_queue(block.carries_over || block.switches_queue);
    units.wash_out = std::max(units.wash_out, block.proves && is_long ? 2 * queue : queue);
    if (is_long) units.measured = std::max(units.measured, kQueuesMeasured * queue);
  }
  ask_ahead();
  lengthen_by_lead(units);
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

BlockUnits LiveBlocks::usual() const noexcept {
  const std::int64_t queue = waits_for_data_ ? queue_ : 0;
  BlockUnits units{std::max(wash_out_, queue), std::max(units_a_block_, kQueuesMeasured * queue), 0, 0};
  lengthen_by_lead(units);
  return units;
}

std::int64_t LiveBlocks::pairs_to_a_long_one() const noexcept {
  const std::int64_t queue = queue_ > 0 ? queue_ : kQueueUnknown;
  const BlockUnits usually = usual();
  BlockUnits longer{std::max(wash_out_, queue), std::max(units_a_block_, kQueuesMeasured * queue), 0, 0};
  lengthen_by_lead(longer);
  const auto more = static_cast<double>(longer.units() - usually.units());
  std::int64_t pairs = 1;
  while (more > kLongShare * static_cast<double>(pairs * usually.units())) pairs *= 2;
  return pairs;
}

std::int64_t LiveBlocks::first_visit() const noexcept {
  return wash_out_ + kFirstVisit;
}

bool LiveBlocks::note(const LivePair& pair) {
  using enum LivePair::Block;
  seconds_ += pair.seconds(first) + pair.seconds(second);
  wait_s_ += pair.wait_s(first) + pair.wait_s(second);
  if (waits_for_data_ || queue_ == 0 || ++pairs_ < kPairsOfWaiting) return false;
  waits_for_data_ = !loop_.agree(wait_s_ <= kWaitShareOfPairs * seconds_);
  return waits_for_data_;
}

// The lead shrinks where the settings make the device the faster of the two.
void LiveBlocks::lengthen_by_lead(BlockUnits& units) const noexcept {
  if (ahead_ == 0) return;
  units.wash_out = std::max(units.wash_out, 2 * ahead_ + 1);
  units.measured = std::max(units.measured, kQueuesMeasured * ahead_);
}

void LiveBlocks::ask_ahead() {
  const std::int64_t asked = std::clamp<std::int64_t>(loop_.units_ahead(), 0, kAheadMax);
  ahead_ = 0;
  while (ahead_ < kAheadMax && !loop_.agree(ahead_ >= asked)) ++ahead_;  // On all ranks as far as on any.
}

// Units that what is loaded ahead lasts for. A 0 is what it says, unless what carries over is to be washed out: then it
// may also be that the loop does not know, or that the other block alone has a queue.
std::int64_t LiveBlocks::ask_queue(bool carries_over) {
  const std::int64_t asked = std::clamp<std::int64_t>(loop_.queued_units(), 0, kUnitsMax);
  if (asked > 0) queue_ = asked;
  if (asked > 0 || !carries_over) return asked;
  return queue_ > 0 ? queue_ : kQueueUnknown;
}

}  // namespace headrace
