// Two configurations of one job, measured in pairs of blocks.
#pragma once

#include <headrace/error.h>
#include <headrace/tune.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "insight/tune/statistics.h"

namespace headrace {

Interval to_gain(const Estimate& log_gain);  // Of log(baseline time / candidate time).
// "+3.1 % (95 %: -0.4 % to +6.8 %, 11 pairs)".
std::string gain_text(const Interval& gain, std::int64_t pairs);
// Of an open change, Bets::pairs_needed(): "about 23 pairs more would decide it"; empty where that cannot be told.
std::string pairs_needed_text(std::optional<std::int64_t> pairs);

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
// Pairs that blocks are planned for: of long blocks, and of short ones. Step times drift, and of the same steps short
// blocks next to each other tell more than long ones (docs/measured/tuner.md).
inline constexpr std::int64_t kPairsWanted = 14;
inline constexpr std::int64_t kShortPairsWanted = 24;
// Blocks long enough to be timed and short enough for about that many pairs within `share_s`, each pair with two
// switches.
BlockPlan plan_blocks(double first_step_s, double second_step_s, double switch_s, double share_s,
                      std::int64_t pairs_wanted = kPairsWanted);

enum class Arm { first, second };

struct PairFault {
  Arm arm;
  Fault fault;
};

// Blocks of two configurations from one snapshot on the same samples. Which of them begins a pair is drawn for each
// pair by itself, from the seed: Bets (insight/tune/bets.h) need a fair coin a pair.
//
// What the second configuration has over the first may pay only after `late_share` of a run (Candidate::late_share).
// The blocks show it in full effect, after an unmeasured block that brings it there; the ratios are those of whole
// runs. These grow more slowly than the blocks' own, so that noise lowers their mean, never raises it: the error of
// keeping stays what it is.
class Comparison {
 public:
  Comparison(Job& job, Settings first, Settings second, BlockPlan plan, double late_share, std::uint64_t seed,
             std::int64_t number);

  // A pair counts when both of its blocks are whole.
  std::optional<PairFault> measure_pair();

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
