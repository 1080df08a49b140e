// Changes that take turns all at once: in each pair of blocks a random half of them is on in the first block and the
// others in the second, so that one pair tells of all (a fold-over of two runs, Box, Hunter and Hunter, "Statistics for
// Experimenters", chapter 12, with the halves drawn anew each time).
//
// What a pair says of one change holds the effects of the others as noise: their turns are drawn independently of its
// own. What the pairs before tell of these effects is taken off. That depends on the others' coins and on the past
// alone, so that what is left has the sign that the change's own coin gives it, whatever was taken off: the bets stay
// fair. Where two changes work differently together than alone, it is wrong; so it chooses what is proved alone
// (live_proof.h), and nothing is kept by it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "insight/tune/bets.h"
#include "insight/tune/joint_effects.h"
#include "insight/tune/pair_record.h"

namespace headrace {

// Of the change in a race that gains most, as far as pairs tell: it is proved alone. Others wait for kWealthToKeep, as
// by chance the one that gains most may have been on their side. Proofs begin with a wealth of their own, so that this
// decides how many are begun in vain, and not what is kept.
inline constexpr double kWealthToProve = 20;
// The fewest pairs by which it is there: 5 that say the most make 13, 6 make 23.
inline constexpr std::int64_t kPairsToProve = 6;

// Changes are numbers below `count`.
class LiveRace {
 public:
  // Whether two changes may not be on at once.
  using Excludes = std::function<bool(std::size_t, std::size_t)>;

  struct Turn {
    std::size_t change;
    bool leads;  // On in the first block and off in the second.
  };
  struct Pair {
    std::array<std::vector<std::size_t>, 2> on;  // What is on in each block, in order of their numbers.
    std::vector<Turn> turns;                     // The changes that it tells of.
  };

  // The same seed draws the same turns for the same calls.
  LiveRace(std::size_t count, double gain_min, std::uint64_t seed, Excludes excludes);

  void enter(std::size_t change);
  void leave(std::size_t change);  // What was found of it can still be read.
  // A change whose turn is expensive takes it in every n-th pair and stays as it is in between (a split-plot design).
  // n >= 1. Changes of the same n take theirs in the same pairs.
  void take_turns_every(std::size_t change, std::int64_t pairs);
  bool is_turn_of_every(std::int64_t pairs) const noexcept { return (drawn_ + 1) % pairs == 0; }  // The next pair.
  void forget();                   // The settings below the changes are others now: what was found no longer counts.
  void clear(std::size_t change);  // Nor can it be read any more.
  void turn_off(std::size_t change) { entries_[change].on = false; }  // Until its next turn.
  void turn_all_off();  // A pair was not finished, and none of them is on.

  const std::vector<std::size_t>& changes() const noexcept { return changes_; }  // In the order in which they entered.

  // Of each change that takes its turn, a fair coin decides whether it leads, whatever was drawn and measured before.
  // Of changes that exclude each other, one takes its turn, and which one is drawn; a new one first.
  Pair draw(std::int64_t number);
  void add(const Pair& pair, double log_ratio);  // log(time of its first block / of its second).

  Outcome outcome(std::size_t change) const;     // pays: it is to be proved.
  std::int64_t pairs(std::size_t change) const;  // That count.
  // Of the latest pairs that told of it, also where they no longer count, each without what is known of the others.
  const PairRecord& record(std::size_t change) const { return entries_[change].record; }
  // Changes that took their turns in pairs of record(), which holds their effects as noise.
  const std::set<std::size_t>& beside(std::size_t change) const { return entries_[change].beside; }

 private:
  struct Entry {
    PairRecord record;
    std::set<std::size_t> beside{};
    bool counts = true;  // What is in the record.
    bool on = false;     // As the last pair left it.
    bool had_turn = false;
    std::int64_t every = 1;
  };
  std::vector<std::size_t> due_changes() const;
  bool leads(std::size_t change) const;  // None of the others gains more, as far as is known.
  bool fits(std::size_t change, const std::vector<std::size_t>& others) const;

  double gain_min_;
  std::uint64_t seed_;
  Excludes excludes_;
  std::vector<Entry> entries_;
  JointEffects effects_;
  std::vector<std::size_t> changes_;
  std::int64_t drawn_ = 0;  // Pairs.
};

}  // namespace headrace
