#include "insight/tune/live_pair.h"

#include <algorithm>
#include <cmath>

#include "insight/tune/unit_times.h"

namespace headrace {

void LivePair::Sum::add(const LiveUnit& unit, double expected) noexcept {
  ++units;
  seconds += unit.seconds;
  expected_s += expected;
  wait_s += unit.wait_s;
}

void LivePair::add(const LiveUnit& unit, double expected_s) noexcept {
  Measured& block = of(at_hand_);
  if (!is_counted(unit)) {
    ++block.uncounted;
  } else if (block.washed_out < block.planned.wash_out) {
    ++block.washed_out;
  } else if (block.planned.settled == 0 || block.measured.units < block.planned.measured) {
    block.measured.add(unit, expected_s);
  } else if (block.passed_over < block.planned.gap) {
    ++block.passed_over;
  } else {
    block.settled.add(unit, expected_s);
  }
}

std::int64_t LivePair::units() const noexcept {
  std::int64_t units = 0;
  for (const Measured& block : blocks_) units += block.planned.units();
  return units;
}

bool LivePair::is_whole() const noexcept {
  const Measured& block = of(at_hand_);
  return block.measured.units >= block.planned.measured && block.settled.units >= block.planned.settled;
}

bool LivePair::is_scattered() const noexcept {
  const Measured& block = of(at_hand_);
  return block.uncounted > 16 + 2 * block.planned.units();
}

bool LivePair::is_washed_out(std::int64_t units) const noexcept {
  const Measured& block = of(at_hand_);
  return block.washed_out >= std::min(units, block.planned.wash_out) && block.measured.units == 0;
}

bool LivePair::is_half_measured() const noexcept {
  const Measured& block = of(at_hand_);
  return block.measured.units > 0 && 2 * block.measured.units >= block.planned.measured;
}

void LivePair::begin_second(const BlockUnits& units) noexcept {
  at_hand_ = Block::second;
  of(at_hand_).planned = units;
}

double LivePair::log_ratio() const noexcept {
  return std::log(of(Block::first).measured.ratio() / of(Block::second).measured.ratio());
}

std::optional<double> LivePair::log_settling(Block block) const noexcept {
  if (of(block).settled.units == 0) return std::nullopt;
  return std::log(of(block).measured.ratio() / of(block).settled.ratio());
}

double LivePair::unit_s(Block block) const noexcept {
  return of(block).measured.seconds / static_cast<double>(of(block).measured.units);
}

}  // namespace headrace
