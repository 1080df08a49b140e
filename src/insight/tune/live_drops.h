// Changes that were dropped in a race: which of them are looked at again, and what is said of each.
//
// The pairs of a race hold the effects of all changes that take turns in them, and what is taken off for the others is
// what pairs have told of them so far: in the first ones nothing. That such pairs speak against a change
// holds whatever the others do (bets.h). How much it gains or costs may be another's effect, where by chance the two
// were on opposite sides in all of a few pairs: a change that costs nothing looked 46 % slower in 6 pairs beside one
// that gains 72 %. So a figure is told as the change's own only where no change beside it had such an effect.
#pragma once

#include <headrace/ledger.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "insight/tune/live_changes.h"
#include "insight/tune/live_race.h"
#include "insight/tune/pair_record.h"

namespace headrace {

// Of log time: what shows less than this in a race has disturbed no others.
inline constexpr double kNoticed = 0.05;

// Of a change that pairs dropped: "Slower: -20.1 % (95 %: ...), alone." for what was `found`.
std::string drop_sentence(Outcome outcome, double gain_min, const std::string& found);
Reason drop_reason(Outcome outcome);

// Changes are numbers below changes.count(). What is known of the others' effects is asked anew for each answer.
class LiveDrops {
 public:
  struct Told {
    Reason reason;
    std::string sentence;
  };

  // Both outlive the object.
  LiveDrops(const LiveChanges& changes, const LiveRace& race, double gain_min)
      : changes_(changes), race_(race), gain_min_(gain_min) {}

  void add(std::size_t change);  // Dropped, by the pairs that the race has of it.
  // Those that few pairs spoke against, in order of their numbers: they are to be looked at a second time, and not a
  // third.
  std::vector<std::size_t> waiting() const;
  void look_again(std::size_t change);                // It is open again, if it was dropped.
  bool is_looked_at_again(std::size_t change) const;  // And was not dropped since.
  void take_back(std::size_t change);                 // Of such a one: there was no second look, and the drop holds.
  void forget(std::size_t change);                    // What was measured no longer counts.

  std::vector<std::size_t> dropped() const;           // Those whose drop holds, in order of their numbers.
  const PairRecord* pairs(std::size_t change) const;  // That dropped it; nullptr: no drop of it holds.
  // Of a drop that holds. `search_goes_on`: those that wait may still be looked at again.
  Told told(std::size_t change, bool search_goes_on) const;
  bool tells_gain(std::size_t change, bool search_goes_on) const;  // Whether that has a figure of the gain.
  // Of the changes that took turns in the pairs that dropped it, the one whose own effect may be half of what they
  // showed, or more: one that was proved alone before others, and the larger before the smaller. nullopt: there is
  // none.
  std::optional<std::size_t> disturber(std::size_t change) const;

 private:
  enum class State { waits, open_again, settled };
  struct Drop {
    PairRecord pairs;
    std::set<std::size_t> beside;
    State state;
  };
  double effect_of(std::size_t change) const;  // Size, of log time; 0 where no pair was measured.

  const LiveChanges& changes_;
  const LiveRace& race_;
  double gain_min_;
  std::map<std::size_t, Drop> drops_;
};

}  // namespace headrace
