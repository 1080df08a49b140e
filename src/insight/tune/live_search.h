// What is tried when in a run under way: the state behind LiveTuner.
//
// Stages: the baseline's units; the search, in which changes pass the gate, take turns all at once and are proved
// alone, what takes long to prepare last and among no others, and in which what is not allowed is timed as soon as
// something is kept or a tenth of the run is over; pairs of all that was kept against the loop as written; timing of
// what there was no room for until then; watching what was kept.
// All that is left to times goes through LiveLoop::agree(), so that every rank switches the same at the same update.
#pragma once

#include <headrace/live_tuner.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/hardware/cpu_load.h"
#include "insight/tune/live_account.h"
#include "insight/tune/live_blocks.h"
#include "insight/tune/live_changes.h"
#include "insight/tune/live_drops.h"
#include "insight/tune/live_gate.h"
#include "insight/tune/live_pair.h"
#include "insight/tune/live_proof.h"
#include "insight/tune/live_race.h"
#include "insight/tune/live_switch.h"
#include "insight/tune/unit_times.h"

namespace headrace {

// Exceptions of the loop and of those who are told pass through. After any call, and behind such an exception, the pair
// at hand is measured under exactly the settings in force, or there is none.
class LiveSearch {
 public:
  using Clock = std::function<double()>;  // Monotonic seconds.
  using LoadReader = std::function<CpuLoad()>;

  // Without `read_load` the machine's load is unavailable.
  LiveSearch(LiveLoop& loop, std::vector<Candidate> candidates, const LiveOptions& options, std::uint64_t seed,
             LiveProgress progress, Clock clock, LoadReader read_load);
  LiveSearch(const LiveSearch&) = delete;
  LiveSearch& operator=(const LiveSearch&) = delete;

  // As LiveTuner's.
  bool keeps_call() const noexcept { return kept_call_.is_wanted; }
  void before_update();
  void after_update(const LiveUnit& unit);
  void note_update(std::int64_t update) noexcept { update_ = update; }
  void failed(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys);
  bool watching() const noexcept;
  void stop(const std::string& why);
  void undo();
  const Settings& in_force() const noexcept { return switch_.in_force(); }
  LiveLedger ledger() const;

 private:
  enum class Stage { baseline, search, comparison, timing, watch, closed };
  enum class ProofKind { proof, comparison, recheck };
  enum class CallUse { check, time };
  using Changes = LiveSwitch::Changes;

  struct Proof {
    ProofKind kind;
    std::size_t change;  // Not of a comparison, which is of all that is kept.
    LiveProof pairs;
    bool repeats = false;  // A recheck, behind one that spoke against the change.
  };
  struct Block {
    Settings settings;
    Changes on;
    LiveBlocks::Block shape{};
  };
  struct Measurement {
    LivePair pair;
    std::array<Block, 2> blocks;
    std::optional<LiveRace::Pair> drawn{};  // nullopt: the pair is one of proof_.
    bool change_leads = false;              // Of proof_.
    double behind_s = 0;                    // The run, when it began.
    UnitTimes::Line expected{};             // What units take by their work: with two lines, their difference would
                                            // count as one of the blocks'.
    bool goes_on = false;                   // Right behind a pair of proof_, with the settings and the line of its end.
  };
  struct KeptCall {
    bool is_wanted = false, was_replayed = false;  // Of the unit at hand.
    CallUse use = CallUse::check;                  // In the search.
    std::int64_t missing = 0;                      // Units in a row in which none was replayed.
    std::string why;                               // The newest of them could not be; empty: none was kept.
    double replay_s = 0;                           // That a check is expected to take, with a replay of the reference.
  };
  struct Failure {
    Verdict verdict;
    Reason reason;
    std::string sentence;
  };

  // live_begin.cpp: the loop as written, and which changes are tried when.
  bool measure_baseline(const LiveUnit& unit);  // Whether something can begin.
  void begin_search();
  void tell_begin(std::size_t tried, bool length_is_known);
  Changes settle_untried(bool cores_taken);
  void let_in_most_promising(const Changes& open, std::size_t held);
  void let_in_held_back();
  std::size_t in_play() const;  // Changes that are tried and not decided.
  void settle_forbidden(std::size_t change);
  void let_in(std::size_t change);

  // live_search.cpp: units, and what comes next.
  void account(const LiveUnit& unit, bool kept_call);
  bool measure(const LiveUnit& unit);  // Whether something can begin: no pair goes on.
  bool newcomer_is_on() const;
  bool newcomer_is_slow(const LiveUnit& unit) const;
  void break_off(bool is_slow, bool has_room);
  void finish_pair();
  void measure_anew();
  bool was_decided_by_pairs(std::size_t change) const;

  void begin_next();
  bool search_next();  // These two: whether something was begun, else the stage is over.
  bool time_next();
  void compare_next();
  void watch_next();
  bool expect_rest();
  bool has_room(double cost_s) { return agree(account_.budget().has_room(cost_s)); }
  bool is_over(double share, double seconds) const;  // So much of the run; seconds where its length is not known.
  bool wait_for_room();
  bool put_off_long_turns();
  void rest(std::int64_t units);
  bool look_again(std::optional<std::size_t> known);
  bool reopen(std::size_t change);              // It waits for pairs again. Whether it may.
  Standing turns_of(std::size_t change) const;  // Of one that may be in force: with others or alone.

  // live_turns.cpp: pairs, and what is in force in their blocks.
  void begin_proof(ProofKind kind, std::size_t change, Settings without, Settings with);
  void begin_proof_pair();
  void begin_race_pair();
  void plan_turns();
  std::int64_t turns_every(std::size_t change);
  void begin(Measurement measurement, std::string_view name);
  bool begin_second_block();
  std::optional<BlockUnits> begin_block(Block& block, std::string_view why);
  std::int64_t left_to_wash_out() const noexcept;  // Units to come that hold something of the settings before.
  bool is_new(const Changes& on) const;
  bool prepares(const Changes& on) const;  // Something that a unit may take long for.
  double switch_s(std::size_t change) const;
  bool switch_to(const Block& block, std::string_view why);
  void hold(std::string_view why);  // What is kept, and nothing else.

  // live_checks.cpp: kept calls, and what is found out by replaying them.
  bool want_call(double cost_s, CallUse use);  // These three: whether something was begun, else the stage is over.
  bool check_next();                           // The gate, when nothing else is left.
  bool check_beside_kept(std::size_t change);
  void tell_preparing(std::size_t change);
  void tell_prepared(std::size_t change);
  bool is_checked(std::size_t change) const;
  bool gate_goes_first();
  bool timing_goes_first();
  double reserve_s() const;  // Of what may be lost, for the turns of those that wait for them.
  double gate_cost_s() const;
  std::optional<std::size_t> next_to_time() const;
  double timing_cost_s(std::size_t change) const;
  void check_kept_call(double begin_s);
  void time_kept_call();
  bool call_is_at_fault(const ReplayFailure& failure);
  void note_replay(std::size_t change, double took_s);
  void settle_gate(std::size_t change, const NumericResult& numerics);
  void settle_without_call();
  double prepare_s(std::size_t change) const;                       // Measured, or typical.
  std::optional<double> rest_s() const;                             // Of the run under what is kept.
  bool can_pay(std::size_t change) const;                           // What it takes to prepare, in the rest of the run.
  bool is_prepared(const Settings& settings) const;                 // Nothing in them has to be prepared anew.
  std::string prepare_text(std::size_t change, double gain) const;  // payback_text(), or empty.

  // live_verdicts.cpp: what is found out by pairs, and who is told.
  static Failure failure_of(ErrorCode code, const std::string& message);
  void settle_failed(std::size_t change, ErrorCode code, const std::string& message);
  void blame(const Changes& on, const LiveSwitch::Refusal& refusal);
  void judge_race();
  bool is_left_off(std::int64_t pairs);
  void drop(std::size_t change);
  void judge_proof();
  void settle_proof(const Proof& proof, Outcome outcome, bool is_clean);
  void note_pairs(const Proof& proof);
  void settle_recheck(const Proof& proof);
  void take_out(std::size_t change, Failure why, double factor);
  void note_comparison(const Proof& proof);
  std::string prepare_note(const Proof& proof) const;
  void keep(const Proof& proof);
  void settle(std::size_t change, Verdict verdict, Reason reason, std::string sentence);
  void settle_open(Reason reason);
  bool was_measured_again(std::size_t change) const;
  void settle_drops();
  void failed_under(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys);
  bool is_on_trial(std::size_t change) const;
  void undo_trial();
  void end_search();
  void close(const Settings& settings, const std::string& why);
  std::string open_sentence(std::size_t change) const;
  LiveLedger::Estimate estimate_of(std::size_t change) const;
  std::optional<std::int64_t> pairs_needed(std::size_t change) const;
  void tell_decided(std::size_t change);
  void tell();  // All that waits to be told; last, because those who are told may throw.

  bool agree(bool yes) { return loop_.agree(yes); }

  LiveLoop& loop_;
  LiveOptions options_;
  std::uint64_t seed_;
  LiveProgress progress_;
  Clock clock_;
  LoadReader read_load_;
  Stage stage_;
  LiveChanges changes_;
  LiveSwitch switch_;
  LiveAccount account_;
  LiveBlocks blocks_;
  LiveBaseline baseline_;
  CpuLoad load_before_;
  LiveGate gate_;
  LiveRace race_;
  LiveDrops drops_;
  std::map<std::size_t, ReplayTimes> replay_times_;
  std::map<std::size_t, double> prepared_s_;  // That replays took for what a costly change needs, all together.
  std::map<std::size_t, std::optional<std::int64_t>> alone_needed_;  // Further pairs of a proof that was left open.
  std::optional<Proof> proof_;
  std::optional<UnitTimes::Line> line_of_last_;  // Of the pair of proof_ right before, if it ended without the change.
  std::optional<Measurement> pair_;              // Only while the settings of its block are in force.
  KeptCall kept_call_;
  double replays_s_ = 0;                      // In the unit at hand.
  std::int64_t update_ = 0;                   // The newest.
  std::int64_t pairs_ = 0;                    // Begun.
  std::int64_t race_pairs_ = 0;               // Since a rest.
  std::int64_t resting_ = 0;                  // Units that what is kept still holds for.
  std::int64_t wash_out_ = 0;                 // Units behind the newest switch that hold something of the ones before.
  std::optional<std::int64_t> updates_left_;  // When they were asked for last.
  double pair_cost_s_ = 0;                    // That the next pair is expected to put the run behind.
  std::optional<std::size_t> newcomer_;       // Of the pair at hand.
  Changes held_back_;                         // The most promising first.
  Changes to_recheck_;
  double checked_at_s_ = 0;
  bool has_shifted_ = false;  // Since then.
  LiveLedger found_;          // But for what others hold: trials, turns, estimates, seconds.
  std::deque<std::function<void()>> to_tell_;
};

}  // namespace headrace
