// How many updates a block has in a run under way.
#pragma once

#include <headrace/live_loop.h>

#include <cstdint>

#include "insight/tune/live_pair.h"

namespace headrace {

// Blocks are as short as the clock allows, because noise is alike from unit to unit and short pairs decide soonest
// (docs/measured/tuner.md). Where the loop waits for data, or a change is about loading it, what was loaded under the
// settings before is used up first: a wash-out of the whole queue, and blocks of two.
class LiveBlocks {
 public:
  explicit LiveBlocks(LiveLoop& loop) : loop_(loop) {}

  // Once, from the baseline's units: how long one is, and which share of it waits for data.
  void plan(double unit_s, double wait_share);

  struct Block {
    bool switches = true;         // Its settings are others than those in force.
    bool has_new_change = false;  // One that was never in force.
    bool carries_over = false;    // One of its pair's changes says that it does.
    double switch_s = 0;          // Of a switch to or from it, where it is to be a small part of the block.
    bool settles = false;         // It is to tell whether anything is left of the settings before.
  };
  BlockUnits units(const Block& block);

  // A pair that was measured. Whether it shows that the loop waits for data, as nothing before did: pairs of short
  // blocks count no longer.
  bool note(const LivePair& pair);
  std::int64_t units_a_block() const noexcept { return units_a_block_; }
  std::int64_t wash_out() const noexcept { return wash_out_; }
  bool waits_for_data() const noexcept { return waits_for_data_; }

 private:
  LiveLoop& loop_;
  double unit_s_ = 0;
  std::int64_t wash_out_ = 1, units_a_block_ = 1, queued_units_ = 0;
  bool waits_for_data_ = false;
  std::int64_t pairs_ = 0;
  double seconds_ = 0, wait_s_ = 0;  // Of these.
};

}  // namespace headrace
