// How far a run is behind the loop as written, counted unit by unit.
#pragma once

#include <headrace/live_loop.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "insight/tune/live_budget.h"
#include "insight/tune/live_level.h"
#include "insight/tune/unit_times.h"

namespace headrace {

// Whose settings a unit ran under.
enum class InForce { as_written, kept, trial };

// A unit of a trial is behind by what it took more than its work lets expect, and so is one in which something of a
// trial is left. Others under what is kept are ahead by what the proofs say, whatever the machine's load is now, and
// others as written are neither. A unit that does not count is taken to be slower by as much as the newest one that did
// under the same settings. What the tuner itself took is always lost.
//
// A single unit that computes 10 times as long as any that was looked at before was held up by something else, as by a
// process that was stopped or a machine that swapped, and would have been as written, too: it counts as the one before
// it. Where the next unit under the same settings is such a one again, both count.
class LiveAccount {
 public:
  LiveAccount(double lost_s, double lost_share) : budget_(lost_s, lost_share) {}

  // `tuner_s`: of the unit's seconds, those that switches and replays took. `tells`: it tells what the loop takes under
  // these settings; nothing of other ones is left in it.
  void add(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells);
  void spend(double seconds) noexcept { budget_.add(seconds, seconds); }  // Before the first unit.
  // The next unit runs under other settings. `prepares`: a long one may be what these take at first, and counts.
  void note_switch(bool prepares = false) noexcept;
  // What is kept takes `factor` times as long as before.
  void scale_kept(double factor) noexcept { kept_factor_ *= factor; }
  void expect_rest(std::optional<std::int64_t> updates);

  double expected_s(double work) const { return times_.expected(work); }  // As written.
  double unit_s() const { return times_.typical(); }                      // As written.
  double kept_unit_s() const { return kept_factor_ * unit_s(); }          // Under what is kept.
  // Whether units have taken another time for a while, since this was asked last: what was measured before is of
  // another work or another machine.
  bool take_shift() noexcept { return std::exchange(has_shifted_, false); }
  bool is_ahead() const noexcept { return kept_factor_ < 1; }  // What is kept makes up for what was lost.
  // Of the next unit under these settings, if it is as the newest was, and waits for data as the newest few have since
  // the switch.
  double next_excess_s() const;
  const UnitTimes& times() const noexcept { return times_; }
  const LiveBudget& budget() const noexcept { return budget_; }

 private:
  static constexpr std::size_t kNewestWaits = 8;  // So many workers may hand out a batch each at once.
  double even_s(const LiveUnit& unit) noexcept;
  double excess_s(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells);

  UnitTimes times_;
  LiveLevel level_;
  bool has_shifted_ = false;
  LiveBudget budget_;
  double kept_factor_ = 1;                            // Time of a unit under what is kept, relative to as written.
  double factor_ = 1;                                 // Of the newest counted unit of a trial.
  double slowest_ = 1;                                // What a unit computed at most, relative to what is expected.
  double stalled_s_ = 0;                              // Of the newest unit, what counts if the next one is such, too.
  bool prepares_ = false;                             // The settings in force.
  std::size_t trial_units_ = 0;                       // Of these, since the switch,
  std::array<double, kNewestWaits> trial_waits_s_{};  // and what the newest waited for data: a ring.
};

}  // namespace headrace
