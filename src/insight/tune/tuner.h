// The loop behind tune(), with the clock as an argument, so that a test lives through 90 s in no time.
#pragma once

#include <headrace/tune.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/hardware/cpu_load.h"
#include "insight/tune/bets.h"
#include "insight/tune/comparison.h"
#include "insight/tune/numeric_check.h"
#include "insight/tune/numeric_pairs.h"
#include "insight/tune/statistics.h"

namespace headrace {

using Clock = std::function<double()>;  // Monotonic seconds.
using LoadReader = std::function<CpuLoad()>;

// Of the budget, this share is not given to trials: it pays for taking each kept change out once, and for the
// comparison with the baseline.
inline constexpr double kReserve = 0.25;
// While nothing is kept there is nothing to take out, and a trial that promises something may use all but this share.
inline constexpr double kReserveOfOne = 0.1;
// A candidate runs at least so many steps before it is judged, if its share of the budget holds them: an exception that
// strikes one step in twenty has then shown itself with 98 %.
inline constexpr std::int64_t kTrialStepsMin = 80;

// Of the budget, what blocks of the baseline may take that tell whether the machine is quiet, and what a float64 run of
// the batches for numerics checks may take.
inline constexpr double kQuietShare = 0.10;
inline constexpr double kExactShare = 0.10;

// Whether TuneOptions::fixed protects the key: "data" protects "data.num_workers", "data.thread" does not.
bool is_fixed(const std::string& key, const std::vector<std::string>& fixed);

class Tuner {
 public:
  // Without `read_load` the machine's load is unavailable.
  Tuner(Job& job, std::vector<Candidate> candidates, const TuneOptions& options, std::uint64_t seed,
        const TuneProgress& progress, Clock clock, LoadReader read_load = {});
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  Ledger run();  // Once.

 private:
  enum class Next { go_on, settled, again };  // again: the best configuration changed under the trial.
  enum class End { done, time, stopped, fault };
  struct Measured {
    End end;
    Outcome outcome;                           // Of bets on all pairs.
    Estimate log_gain;                         // Not measured without pairs.
    std::optional<std::int64_t> pairs_needed;  // Bets::pairs_needed().
    std::optional<PairFault> fault;
  };
  struct Limits {
    double share_end_s;  // Where a comparison ends that is not near its verdict.
    double hard_end_s;   // Where any ends.
  };
  using Indices = std::vector<std::size_t>;  // Of trials, in the order in which they were kept.

  void calibrate();
  void judge_machine(const CpuLoad& before);
  BlockPlan plan_of_trial(double second_step_s, double share_s, const std::string& resource) const;
  bool is_quiet() const { return ledger_.quietness.quiet.value_or(true); }
  // Where the machine is not quiet: pairs that decide on kGainPlanned, what so many pairs and the checks before them
  // take as long as steps are now, and decisions that what is left for trials holds, at least one.
  std::int64_t decision_pairs() const;
  double seconds_for(std::int64_t pairs) const;
  std::int64_t decisions_held() const;
  void try_candidate(std::size_t index, std::size_t left);
  bool settled_untried(std::size_t index);
  bool settled_for_noise(std::size_t index);
  Next try_on_best(std::size_t index, const Limits& limits);
  Next check_numerics(std::size_t index);
  Next check_in_processes(std::size_t index, const Settings& settings, const Limits& limits);
  bool goes_on(std::size_t index) const;
  Next begin_comparison(std::size_t index, const Settings& settings, const Limits& limits, std::int64_t& steps_run);
  Next compare_speed(std::size_t index, const Settings& settings, const Limits& limits);
  void return_to_open_trials();
  Next judge(std::size_t index, const Measured& measured);
  // Ends early where time or a stop ends it. `step_s` is an estimate.
  std::optional<Fault> run_unmeasured(const Settings& settings, std::int64_t steps, double step_s, double end_s);
  // Until the bets decide or, where `pairs` is given, until there are so many, whatever they show.
  Measured run_pairs(Comparison& comparison, const Limits& limits, std::optional<std::int64_t> pairs = {});

  void leave_each_out();
  void leave_out(std::size_t index, double end_s);
  void compare_with_baseline();
  void record_speedup(const Comparison& comparison, const Estimate& log_gain);

  // The candidate is at fault, or, for blame(), the newest of the kept changes that were in force.
  Next settle_fault(std::size_t index, const Fault& fault, std::int64_t steps_run);
  void blame(const Fault& fault, const Indices& in_force);
  Next settle(Trial& trial, Verdict verdict, Reason reason, std::string sentence);
  Next settle_early(Trial& trial);
  void take_out(std::size_t index, Verdict verdict, Reason reason, const std::string& sentence);

  // What the job itself can hold of them: all but the keys that need a new process.
  Settings without_process_keys(Settings settings) const;
  // Times these two: the job itself or, where either needs a new process, the two processes of the trial at hand.
  Job& job_for(const Settings& first, const Settings& second);
  double prepare_s(const Settings& settings) const;  // Of the two processes, where these need them; else 0.
  void end_trial(std::size_t index);

  double end_of_trials_s(double reserve) const;
  bool keep_going();
  bool still_pays(const Measured& measured, std::int64_t pairs) const;
  Settings settings_of(const Indices& kept) const;
  double late_share(const Indices& kept) const;  // The largest: what counts when all of them are compared with none.
  Next check_numeric_pair(std::size_t index, const NumericPair& pair);
  Indices kept_without(std::size_t index) const;
  Indices at_fault(Arm arm, const Indices& kept_in_first) const;  // Of kept changes, in a comparison with kept_.
  double samples_per_second(double step_s) const;

  Job& job_;
  std::vector<Candidate> candidates_;  // candidates_[i] is tried in ledger_.trials[i].
  TuneOptions options_;
  std::uint64_t seed_;
  TuneProgress progress_;
  Clock clock_;
  LoadReader read_load_;
  NumericCheck check_;
  Ledger ledger_;
  std::vector<std::optional<Comparison>> comparison_of_;  // Of each candidate, the last one.
  std::set<std::string> process_keys_;                    // That candidates change in a new process.
  std::unique_ptr<Job> processes_;                        // Of the comparison at hand; null: the job itself makes it.
  Indices kept_;
  bool stopped_ = false;
  double start_s_ = 0, trials_end_s_ = 0, end_s_ = 0;
  double switch_s_ = 0;                           // configure() and restore().
  double baseline_step_s_ = 0, best_step_s_ = 0;  // Medians of what was measured last.
  BlockPlan plan_judged_;                         // Of the blocks that told whether the machine is quiet.
  std::size_t tried_ = 0;                         // Candidates that had a share of the budget.
  std::int64_t comparisons_ = 0;
};

}  // namespace headrace
