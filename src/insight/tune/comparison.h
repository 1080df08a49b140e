// Two configurations of one job, measured in pairs of blocks, and what the pairs so far allow to say.
#pragma once

#include <headrace/error.h>
#include <headrace/tune.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "insight/tune/statistics.h"

namespace headrace {

// A sequential test: the pairs are looked at after these numbers of them, not after each, because every look is one
// more chance to be fooled. More than 64 pairs are not spent on one candidate.
inline constexpr std::array<std::int64_t, 10> kLooks = {3, 6, 8, 11, 15, 20, 27, 36, 48, 64};
inline constexpr std::int64_t kPairsMax = kLooks.back();
// Before that no rank test can reach kKeepError (2^-7 is larger), and nothing is kept on the word of Student's t.
inline constexpr std::int64_t kPairsToKeep = 8;
// One level for all looks (Pocock, Biometrika 64, 1977). With the ranks of statistics.h at the looks from 8 on, a
// change of no worth passes one of them with probability 0.0223 (400,000 simulated trials): within the 2.5 % that the
// lower end of one 95 % interval allows. Comparison.PeekingKeeps... draws it again.
inline constexpr double kKeepError = 0.006;
inline constexpr double kTailError = 0.025;  // One end of a 95 % interval that is looked at once.

bool is_look(std::int64_t pairs) noexcept;

enum class Outcome { open, pays, no_gain, slower };

struct Reading {
  Estimate log_gain;  // Of log(baseline time / candidate time).
  Outcome outcome = Outcome::open;
};
Interval to_gain(const Estimate& log_gain);
// "+3.1 % (95 %: -0.4 % to +6.8 %, 11 pairs)".
std::string gain_text(const Interval& gain, std::int64_t pairs);

// A trial. The lower end decides what is kept and holds for all looks together. The upper end decides only what is
// refused, where a mistake costs a gain and not the truth; it is that of a single look.
Reading judge_trial(std::span<const double> log_ratios, double gain_min);
// Whether a kept change still pays. It has proved itself once, so that both ends are those of a single look.
Reading judge_again(std::span<const double> log_ratios, double gain_min);

// What an exception out of the job means for the configuration that was running.
struct Fault {
  ErrorCode code = ErrorCode::internal;
  std::string message;           // First line.
  std::exception_ptr exception;  // To be rethrown when no candidate is to blame.
};
// Runs `work`. This is where a trial turns an exception into an outcome; nothing else in this module catches.
std::optional<Fault> attempt(const std::function<void()>& work);

struct BlockPlan {
  std::int64_t warmup = 1;  // Unmeasured steps after each switch: caches, thread pools and queues fill again.
  std::int64_t steps = 1;
};
// Pairs that blocks are planned for. Step times drift, and of the same steps short blocks next to each other tell more
// than long ones (docs/measured/tuner.md); of blocks of very few steps the unmeasured ones take too large a share.
inline constexpr std::int64_t kPairsWanted = 14;
inline constexpr std::int64_t kShortPairsWanted = 24;
inline constexpr std::int64_t kShortBlockSteps = 5;
// Blocks long enough to be timed and short enough for about that many pairs within `share_s`, each pair with two
// switches.
BlockPlan plan_blocks(double first_step_s, double second_step_s, double switch_s, double share_s,
                      std::int64_t pairs_wanted = kPairsWanted);

enum class Arm { first, second };

struct PairFault {
  Arm arm;
  Fault fault;
};

// Blocks of two configurations from one snapshot on the same samples, in an order that a seed draws: of two pairs in
// succession, one begins with the first configuration and one with the second, so that neither a drift nor a habit of
// the machine favours one.
//
// What the second configuration has over the first may pay only after `late_share` of a run (Candidate::late_share).
// The blocks show it in full effect, after an unmeasured block that brings it there; the ratios are those of whole
// runs.
class Comparison {
 public:
  Comparison(Job& job, Settings first, Settings second, BlockPlan plan, double late_share, std::uint64_t seed,
             std::int64_t number);

  // A pair counts when both of its blocks are whole.
  std::optional<PairFault> measure_pair();

  // From the next pair on. Pairs of several lengths count alike: the test needs their signs and ranks only.
  void set_plan(BlockPlan plan) noexcept { plan_ = plan; }
  // Before the first pair: what the steps of the blocks spend their time on is summed up, too.
  void sum_splits() noexcept { sums_splits_ = true; }

  const Settings& first() const noexcept { return first_; }
  const Settings& second() const noexcept { return second_; }
  const BlockPlan& plan() const noexcept { return plan_; }
  std::int64_t pairs() const noexcept { return static_cast<std::int64_t>(log_ratios_.size()); }
  const std::vector<double>& first_s() const noexcept { return first_s_; }            // Seconds a step of each block.
  const std::vector<double>& second_s() const noexcept { return second_s_; }          // As many.
  const std::vector<double>& second_run_s() const noexcept { return second_run_s_; }  // Mean over a whole run.
  const std::vector<double>& log_ratios() const noexcept { return log_ratios_; }      // first_s / second_run_s.
  // Of the steps of all counted blocks (sums alone); nullopt: not asked for, or the job could not tell of every block.
  std::optional<TimeSplit> first_split() const { return split_of(Arm::first); }
  std::optional<TimeSplit> second_split() const { return split_of(Arm::second); }

 private:
  Job::SplitRun measure_block(const Settings& settings);
  void add_splits(const Job::SplitRun& first, const Job::SplitRun& second);
  std::optional<TimeSplit> split_of(Arm arm) const;

  Job& job_;
  Settings first_, second_;
  BlockPlan plan_;
  double late_share_;
  std::uint64_t seed_;
  std::int64_t number_;  // Of this comparison within the run: its own random order.
  std::vector<double> first_s_, second_s_, second_run_s_, log_ratios_;
  bool sums_splits_ = false;
  std::int64_t pairs_split_ = 0;  // Both of whose blocks are in the sums.
  std::array<TimeSplit, 2> splits_;
};

// Makes the settings hold on the snapshot's state.
void switch_to(Job& job, const Settings& settings);
// Seconds of each step; Error{internal} when the job's answer is not one positive time a step.
std::vector<double> timed_steps(Job& job, std::int64_t steps);

}  // namespace headrace
