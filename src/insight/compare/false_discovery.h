// Which of many hypotheses are rejected, when the share of wrong ones among them is to stay small.
//
// Benjamini and Hochberg's procedure on e-values: of m hypotheses, those with the k largest e-values are rejected, for
// the largest k whose k-th e-value is at least m / (rate * k). The expected share of wrong ones among them is then at
// most `rate`, however the e-values hang together, and also where a common rule stopped the collecting of evidence.
// Wang and Ramdas, "False discovery rate control with e-values", JRSS B 84 (2022).
#pragma once

#include <span>
#include <vector>

namespace headrace {

// `e_values` not below 0, whose mean is at most 1 where the hypothesis holds (a Bets' wealth, insight/tune/bets.h);
// `rate` above 0 and below 1. One verdict each, in order: true: rejected.
std::vector<bool> reject(std::span<const double> e_values, double rate);

}  // namespace headrace
