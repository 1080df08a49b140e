// How many updates a block has in a run under way.
#pragma once

#include <headrace/live_loop.h>

#include <cstdint>

#include "insight/tune/live_pair.h"

namespace headrace {

// Blocks are as short as the clock allows, because noise is alike from unit to unit and short pairs decide soonest
// (docs/measured/tuner.md). Where the loop waits for data in either of a pair's blocks, or they load differently, what
// was loaded under the settings before is used up first: a wash-out of the whole queue, and blocks of two. Such blocks
// are called long. Where a host works ahead of a device, blocks are as long for what it is ahead by.
class LiveBlocks {
 public:
  explicit LiveBlocks(LiveLoop& loop) : loop_(loop) {}

  // Once, from the baseline's units: how long one is, and which share of it waits for data.
  void plan(double unit_s, double wait_share);
  // Other settings are kept, under which such a share waits.
  void set_waiting(double wait_share);

  struct Block {
    bool switches = true;         // Its settings are others than those before it,
    bool switches_queue = false;  // and what those had prepared is used up under these.
    bool carries_over = false;    // So it is from one of its pair's blocks to the other.
    bool may_wait = false;        // In its pair the loop may wait for data, whatever it does under what is kept.
    // Its pair's figure is one that is told. The queue is then washed out twice: once it holds nothing of the settings
    // before, it takes about as many units more until as much is in it as there would be without them.
    bool proves = false;
    bool has_new_change = false;    // One that was never in force.
    double switch_s = 0;            // Of a switch to or from it, where it is to be a small part of the block.
    bool settles = false;           // It is to tell whether anything is left of the settings before.
    std::int64_t measured_min = 0;  // As many are measured in the block that it is compared with.
  };
  // Asked when its settings are in force, as they decide what is loaded ahead.
  BlockUnits units(const Block& block);
  // Of a block in a pair that nothing makes longer than others.
  BlockUnits usual() const noexcept;
  // So many usual pairs that with one of long blocks among them they take at most a quarter of their updates more; a
  // power of 2. 1: usual ones are as long.
  std::int64_t pairs_to_a_long_one() const noexcept;

  // A pair that was measured, of blocks that load alike. Whether it shows that the loop waits for data, as nothing
  // before did: pairs of short blocks count no longer.
  bool note(const LivePair& pair);
  std::int64_t units_a_block() const noexcept { return units_a_block_; }  // Of one that is not long.
  // Units behind which a change that is in force for the first time shows what it takes, as far as no queue hides it.
  std::int64_t first_visit() const noexcept;
  bool waits_for_data() const noexcept { return waits_for_data_; }  // All blocks are long.

 private:
  std::int64_t ask_queue(bool carries_over);
  void ask_ahead();
  void lengthen_by_lead(BlockUnits& units) const noexcept;

  LiveLoop& loop_;
  double unit_s_ = 0;
  std::int64_t wash_out_ = 1, units_a_block_ = 1;
  std::int64_t queue_ = 0;  // The newest one that was not 0, in units; 0: there was none.
  std::int64_t ahead_ = 0;  // Units that the host is ahead of a device at most, as asked last.
  bool waits_for_data_ = false;
  std::int64_t pairs_ = 0;
  double seconds_ = 0, wait_s_ = 0;  // Of these.
};

}  // namespace headrace
