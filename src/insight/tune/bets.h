// Whether a change pays: a test by betting on pairs of blocks one after the other, valid after each of them.
//
// In each pair a fair coin of its own decides which block runs with the change. A pair's log ratio is
// log(time without the change / time with it). Of a change worth exactly gain_min, log ratio - log(1 + gain_min) is the
// difference of the two blocks' own log times with the sign that the coin gave it, so that its mean, given all pairs
// before, is 0, whatever the noise: bursts, heavy tails, correlation from block to block, drift.
//   score = clip((log ratio - log(1 + gain_min)) / (1.25 s), -1, 1)
//   s = 1.4826 * the median distance of the log ratios before from their median; 0.05 for the first four pairs, never
//       below 0.004
//   wealth for the change = mean over the stakes of the product of (1 + stake * score); against it: (1 - stake * score)
// Who stakes shares of a wealth of 1 on a game of mean 0 or below has 100 at any time with a probability of at most
// 1 / 100 (Ville's inequality). So at any number of looks: a change that gains no more than gain_min is kept in at most
// 1 % of cases, and one that gains as much or more is dropped in at most 5 %.
// Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024). Figures on
// recorded steps: docs/decisions/0024-bets-judge-every-trial.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace headrace {

enum class Outcome {
  open,
  pays,     // The gain exceeds gain_min.
  no_gain,  // It does not.
  slower,   // It does not, and the 95 % interval's upper end lies below 0.
};

inline constexpr double kWealthToKeep = 100;
inline constexpr double kWealthToDrop = 20;
// The fewest pairs that can reach these: of n full scores the wealth is 75 with n = 8 and 139 with 9, 13 with 5 and 23
// with 6.
inline constexpr std::int64_t kPairsToKeep = 9;
inline constexpr std::int64_t kPairsToDrop = 6;

class Bets {
 public:
  explicit Bets(double gain_min);
  // Of the next pair; finite. Takes time in proportion to the pairs so far.
  void add(double log_ratio);
  std::int64_t pairs() const noexcept { return static_cast<std::int64_t>(log_ratios_.size()); }
  double wealth_for() const;
  double wealth_against() const;
  // What is decided stays, whatever later pairs say.
  Outcome outcome() const noexcept { return outcome_; }
  // Further pairs that decide it, if they are as those so far. nullopt: it is decided, there is no pair, or 10,000 more
  // would not.
  std::optional<std::int64_t> pairs_needed() const;

 private:
  static constexpr std::array<double, 6> kStakes = {0.15, 0.3, 0.5, 0.7, 0.85, 0.95};
  using Logs = std::array<double, kStakes.size()>;  // Of the wealth that each stake has made.

  double scale() const;
  // Mean over the stakes, had each made `growth` times the log that it has made.
  static double wealth_of(const Logs& logs, double growth = 1);

  double log_gain_min_;
  std::vector<double> log_ratios_;
  Logs for_{}, against_{};
  Outcome outcome_ = Outcome::open;
};

}  // namespace headrace
