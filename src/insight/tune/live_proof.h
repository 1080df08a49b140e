// One change alone: the settings without it against those with it, in pairs of blocks in drawn order.
#pragma once

#include <headrace/job.h>
#include <headrace/ledger.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "insight/tune/live_pair.h"
#include "insight/tune/pair_record.h"

namespace headrace {

// Whether the block with the change leads in pair `number` of a run: a fair coin, whatever was drawn and measured
// before.
bool change_leads(std::uint64_t seed, std::int64_t number) noexcept;

// Pairs that the proof of a change takes which is decided after so many pairs in turns with others: as many again,
// since it begins anew, and no fewer than bets need.
std::int64_t pairs_of_proof(std::int64_t pairs_in_race) noexcept;

// Memory is bounded: of the blocks' times the first kBlocksListed are kept.
class LiveProof {
 public:
  static constexpr std::size_t kBlocksListed = 256;
  // Whether something of the change is left when it is off is looked for in the first kSettlingBlocks blocks without it
  // that have settled units. Where a pair ends without the change and the next one begins without it, the two blocks
  // are compared, too, up to kSettlingPairs times.
  static constexpr std::int64_t kSettlingBlocks = 6, kSettlingPairs = 64;

  LiveProof(Settings without, Settings with, double gain_min);

  const Settings& without() const noexcept { return settings_[0]; }
  const Settings& with() const noexcept { return settings_[1]; }
  // Whether blocks without the change that come behind one with it are to have settled units.
  bool looks_for_carry_over() const noexcept { return std::ssize(settling_) < kSettlingBlocks; }

  // A whole one. goes_on: its first block follows the last pair's second one, with the same settings and the same line.
  void add(const LivePair& pair, bool change_led, bool goes_on);
  const PairRecord& record() const noexcept { return record_; }
  const std::vector<double>& without_s() const noexcept { return block_s_[0]; }  // Seconds a unit of each pair's block.
  const std::vector<double>& with_s() const noexcept { return block_s_[1]; }     // As many.
  // Of the blocks with the change, waiting for data.
  double wait_share() const noexcept { return arms_[1].wait_share(); }
  // Without the change or with it the loop waits for data, or there is no pair yet. What a queue holds may hide it from
  // blocks that are not long.
  bool may_wait() const noexcept;

  // What was prepared or left behind under the change alters the units after it, by so much as a log ratio: those right
  // behind the wash-out against those some units later, in the same block or the next one. nullopt: that is less than a
  // quarter of the change's effect, or may be chance; where nothing carries over, chance passes for it once in a
  // hundred times. Of fewer than four such blocks nothing is known.
  std::optional<double> carry_over() const;

 private:
  struct Arm {
    double seconds = 0, wait_s = 0;
    double wait_share() const noexcept { return seconds > 0 ? wait_s / seconds : 0; }
  };

  std::array<Settings, 2> settings_;
  PairRecord record_;
  double effect_min_;
  std::array<std::vector<double>, 2> block_s_;
  std::array<Arm, 2> arms_{};  // Without the change, with it.
  std::vector<double> settling_;
  std::optional<double> unsettled_;  // Of the newest block without the change that came behind one with it, its ratio.
};

}  // namespace headrace
