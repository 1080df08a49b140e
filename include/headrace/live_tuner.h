// Tunes a run that is under way: tries changes between the user's own updates, keeps what is proved, undoes the rest.
#pragma once

#include <headrace/ledger.h>
#include <headrace/live_loop.h>
#include <headrace/tune.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct LiveOptions {
  NumericClass allow = NumericClass::rounding;  // What a kept change may do to the numbers.
  double gain_min = 0.02;                       // Smallest gain worth keeping; at least 0.
  // At no update is the run further behind the loop as written than `lost_s` plus `lost_share` of the loop's expected
  // length, or of the time so far where nobody knows it; by one update more where that takes longer than any before. A
  // single update that takes 10 times as long as any before is nobody's: whatever held it up would have so as written.
  double lost_s = 10;
  double lost_share = 0.02;
  double recheck_s = 600;            // Kept changes are compared again so often; infinity: never.
  double spent_s = 0;                // Before the first update, to find out what to try: lost, as what replays take.
  std::vector<std::string> fixed{};  // Keys that stay, or tables of keys.
  std::vector<std::string> only{};   // Candidates by name, others are left out; empty: all.
  bool frozen = false;               // auto_tune = False: nothing is tried, applied or recorded.
};

// What was in force from an update on.
struct LiveTurn {
  std::int64_t update = 0;  // The first that it held for.
  Settings settings;
  std::string why;  // "pair 3, race, first block", "pair 3, second block", "what is kept", "stopped".
};

struct LiveLedger {
  static constexpr std::size_t kTurnsMax = 8192;  // The search ends when so many are near.

  // Its trials' gains and pairs are those of the proofs, each change alone against the best so far; speedup is that of
  // all kept changes against the loop as written, in pairs of their own. Samples a second are NaN, budget_s and spent_s
  // are the most that may be lost and the most that was.
  Ledger ledger;
  std::vector<LiveTurn> turns;
  // Of each trial, in the ledger's order.
  struct Estimate {
    // While all changes took turns at once; nullopt: not measured, or dropped in pairs of which another's effect may
    // have made most.
    std::optional<Interval> gain;
    std::int64_t pairs = 0;
    double wealth_for = 1, wealth_against = 1;
    // To decide it as it looks now: alone where it was measured alone, else with the pairs of a proof where it looks as
    // if it pays; nullopt: decided, or not to be told, as of fewer than 4 pairs.
    std::optional<std::int64_t> pairs_needed;
    bool timed_only = false;  // `allow` forbids it: it was never in force, and gain is that of replays of kept calls.
  };
  std::vector<Estimate> estimates;
  std::int64_t updates = 0, counted_units = 0;  // That the tuner was told of; of these, those that tell of time.
  double lost_s = 0;          // Behind the loop as written, as estimated from its own units; negative: ahead.
  double lost_most_s = 0;     // The most that it was at any update.
  double lost_allowed_s = 0;  // At the last update.
  bool ended = false;         // The search is over.
  std::string end_reason;
};

// One line: {"format": "headrace-live-ledger", "version": 1, "ledger": as json_text(Ledger), ...}. Numbers that are not
// finite become null.
std::string json_text(const LiveLedger& ledger);
// As parse_ledger(). Keys that are not known here are left out.
LiveLedger parse_live_ledger(std::string_view text, std::string_view source);

// Told what happens, from the calls below and behind all that they do; empty functions are not called.
struct LiveProgress {
  std::function<void(const Quietness&)> judged;            // First, before anything is tried.
  std::function<void(const std::string& sentence)> began;  // Once: how many changes, a step's time, what may be lost.
  std::function<void(const std::string& sentence)> preparing;  // Before something that takes long, as compiling.
  // Once, of what takes long to prepare: what that took, when it is made and checked. It may have been refused.
  std::function<void(const Candidate&, double seconds)> prepared;
  std::function<void(const Trial&)> decided;  // Again for a trial that was looked at a second time.
  std::function<void(const std::string& sentence)> ended;
};

// The state of a search in a run whose owner reports each update.
//
// Where the loop's own units come to take 1.5 times as long, or as short, for 50 of them (their median), what was
// measured no longer counts, as it was of another work, or of other neighbours: changes that are still open begin anew,
// and so do those that it was found to speak against. What is kept stays; behind the search it is checked
// after a tenth of recheck_s, and not of all of it. A check that speaks against it is made a second time.
//
// All calls come from the thread that makes the updates. Costs a few microseconds an update while it searches, and
// nothing once watching() is false. Exceptions of the loop and of `progress` pass through unchanged and leave the tuner
// usable: in_force() is what holds, and a pair at hand is thrown away where a switch threw. The loop outlives the
// tuner; the destructor changes nothing.
class LiveTuner {
 public:
  using Clock = std::function<double()>;  // Monotonic seconds.
  // The candidates are in the order in which they pass the gate and enter the race; those that take long to prepare
  // (prepare_s above 1, or Switches::rebuild) come last, alone, and where a gain of 30 % would pay for that in what is
  // left of the run. Where the machine is not quiet, 6 are tried at a time: those of the lowest promise_rank first, in
  // that same order, and the next one whenever one of them is decided and the run is long enough to decide on it. What
  // `allow` forbids is timed by replays as soon as something is kept or a tenth of the run is over. Of a run with too
  // few updates left for a race and a proof, nothing is tried. The same seed draws the same turns. With a clock
  // of the caller's own the machine's load, which has times of its own, is unavailable. Error{invalid_argument} for
  // options out of their ranges.
  LiveTuner(LiveLoop& loop, std::vector<Candidate> candidates, LiveOptions options, std::uint64_t seed,
            LiveProgress progress = {}, Clock clock = {});
  ~LiveTuner();
  LiveTuner(const LiveTuner&) = delete;
  LiveTuner& operator=(const LiveTuner&) = delete;

  // Whether the calls of the unit that begins now are to be kept. Asked behind after_update().
  bool keeps_call() const;
  // Before the optimizer's step of a unit whose call was kept: the gate's replays, of each change before it is first in
  // force, and of each together with all that is kept before the two are proved. Changes that set nothing but keys
  // data.* are not replayed, as a kept call has its batch: their class says whether the batches are the same.
  void before_update();
  // Behind every update, between it and the next. Applies what holds for the next unit. Where the candidate's settings
  // threw in the unit, the caller has told failed() first.
  void after_update(const LiveUnit& unit);
  // The newest update that was made, for whoever calls failed(), stop() or undo() before its unit is told: what these
  // apply holds from the next one on.
  void note_update(std::int64_t update);
  // The user's loop threw, or a number became non-finite: settings other than the kept ones are undone, and those of
  // their changes that are not kept are out, named with this sentence; where one was on for the first time, it alone.
  // Where none was on, no change is to blame, and the search ends. With `keys`, those of settings at fault, only the
  // changes that set one of them are out instead, kept or waiting for their turn, too; the search goes on.
  void failed(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys = {});
  // Whether units have to be told at all: false once the search is over and nothing is checked again.
  bool watching() const;
  // Ends the search and all checks: kept changes stay in force, all others are undone, and nothing is applied after it.
  // Applies at once, so that it is called between two updates, as undo().
  void stop(const std::string& why);
  void undo();  // As stop(), and kept changes are undone too. What was found stays in the ledger.
  const Settings& in_force() const;
  LiveLedger ledger() const;  // As it stands; some milliseconds a change.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
