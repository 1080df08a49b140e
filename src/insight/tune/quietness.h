// Whether a machine is quiet enough to try every change, and how many pairs a decision takes where it is not.
//
// Two witnesses: how blocks of the job as written differ from each other, and what the kernel counts of others' work
// meanwhile. Pure functions of both.
#pragma once

#include <headrace/tune.h>

#include <cstdint>
#include <optional>
#include <span>

#include "core/hardware/cpu_load.h"

namespace headrace {

// The gain that a budget is planned for. Larger ones take fewer pairs, smaller ones are left open sooner.
inline constexpr double kGainPlanned = 0.10;
// Pairs that a decision takes are kPairsFactor * (scatter / (log gain - log gain_min))^2: what Bets take of recorded
// steps (docs/decisions/0024-bets-judge-every-trial.md), some 150 of +5 % where pairs scatter by 0.10.
inline constexpr double kPairsFactor = 13;
// More are not planned for one change: the first one would have the whole budget.
inline constexpr std::int64_t kPairsPlannedMax = 64;
// Where others and the host take a tenth of all cores' time, and no tenth is idle that they could have had instead.
inline constexpr double kOthersMax = 0.10;
inline constexpr double kIdleMin = 0.10;
// Blocks of which the spread is judged. Of fewer than the least, a spread is a guess.
inline constexpr std::int64_t kQuietBlocks = 20;
inline constexpr std::int64_t kQuietBlocksMin = 6;

// 1.4826 * the median of |log(block / the next one)|: the standard deviation of a normal distribution, which single
// bursts do not move. The middle is 0 by symmetry. nullopt for fewer than kQuietBlocksMin blocks.
std::optional<double> scatter_of(std::span<const double> block_s);
// nullopt also where all blocks are alike.
std::optional<double> lag_of(std::span<const double> block_s);

// From kPairsToKeep to kPairsPlannedMax.
std::int64_t pairs_to_decide(double scatter, double gain_min);

// Not quiet: deciding on kGainPlanned takes more than half of the pairs that are ever planned (kPairsPlannedMax), or
// others take kOthersMax of the cores. `block_s` are seconds of blocks of equal length, in a row. `pressure` alone
// decides nothing: a job's own loader and compute threads wait for each other, too.
Quietness judge_quietness(std::span<const double> block_s, const CpuUse& use, double gain_min);

}  // namespace headrace
