// Where the middle of a few noisy differences lies, with an interval that no single burst can move far.
//
// Neighbours on a machine disturb single blocks by 20 to 50 %. A mean follows such a block; a rank does not. The
// signed-rank test with scores min(rank, limit) lies between the sign test (limit 1) and Wilcoxon's (limit = count, for
// which the estimate is that of Hodges and Lehmann). It is exact for every distribution whose errors are as likely
// positive as negative, which the random order within each pair provides. Hettmansperger and McKean, "Robust
// Nonparametric Statistical Methods", chapter 1, general signed-rank scores.
#pragma once

#include <span>
#include <vector>

namespace headrace {

double median(std::vector<double> values);  // Of at least one value.

// P(S <= sum), exact, when both signs are equally likely; S is the sum of the scores min(rank, score_max) of the
// negative ones among `count` differences.
double signed_rank_cdf(int count, int score_max, int sum);

// A quarter of the ranks counts in full. Where 4 % of noise, and a burst in 10 % of the blocks, hide a gain of 10 %,
// intervals of these scores missed it in 0.3 % of trials, Wilcoxon's in 7 %; without bursts both are nearly alike
// (docs/decisions/0004-how-a-trial-is-judged.md).
int robust_score_max(int count) noexcept;

// Student's t with that many degrees of freedom exceeds the result with probability `upper_tail`.
double student_quantile(int degrees, double upper_tail);

struct Estimate {
  double center = 0;
  double low = 0;
  double high = 0;
};

inline constexpr double kTailError = 0.025;  // One end of a 95 % interval that is looked at once.

// The true middle lies below `low` with probability at most `error_below` and above `high` with at most `error_above`.
// Where there are too few differences for a rank test to reach such a probability (2^-count is larger) that end is
// Student's; of a single difference nothing is known: minus and plus infinity. Of more than 200 differences the scores'
// sum is taken as normal. Sorts the differences some 200 times: 50 us of 12, 100 ms of 5,000.
Estimate estimate_middle(std::span<const double> differences, double error_below, double error_above, int score_max);
Estimate estimate_middle(std::span<const double> differences, double error_below, double error_above);  // Robust.

}  // namespace headrace
