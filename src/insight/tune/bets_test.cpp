#include "insight/tune/bets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "insight/tune/statistics.h"

namespace headrace {
namespace {

constexpr double kGainMin = 0.02;
const double kLevel = std::log1p(kGainMin);
constexpr double kFullAtFirst = 1.25 * 0.05;  // What the first four pairs have beyond kLevel at a score of 1.

Bets bets_on(const std::vector<double>& log_ratios) {
  Bets bets(kGainMin);
  for (const double log_ratio : log_ratios) bets.add(log_ratio);
  return bets;
}

// Mean over the stakes of the product of 1 + stake * score.
double wealth_of_scores(const std::vector<double>& scores) {
  double sum = 0;
  for (const double stake : {0.15, 0.3, 0.5, 0.7, 0.85, 0.95}) {
    double product = 1;
    for (const double score : scores) product *= 1 + stake * score;
    sum += product;
  }
  return sum / 6;
}

TEST(Bets, WealthIsTheMeanOverTheStakes) {
  Bets bets(kGainMin);
  EXPECT_EQ(bets.wealth_for(), 1);
  EXPECT_EQ(bets.wealth_against(), 1);
  bets.add(kLevel + 0.5 * kFullAtFirst);
  bets.add(kLevel - 0.25 * kFullAtFirst);
  // Scores 0.5 and -0.25; the stakes' mean is 0.575, that of their squares 0.4129167.
  EXPECT_NEAR(bets.wealth_for(), 1 + 0.25 * 0.575 - 0.125 * 0.4129166667, 1e-9);
  EXPECT_NEAR(bets.wealth_against(), 1 - 0.25 * 0.575 - 0.125 * 0.4129166667, 1e-9);
  EXPECT_EQ(bets.pairs(), 2);
  EXPECT_EQ(bets.outcome(), Outcome::open);
}

TEST(Bets, ScoresAreClippedAndScaledByThePairsBefore) {
  // Median 0.025 beyond the level, distances 0.015, 0.005, 0.005, 0.015: a scale of 1.4826 * 0.01.
  std::vector<double> log_ratios;
  for (const double beyond : {0.01, 0.02, 0.03, 0.04}) log_ratios.push_back(kLevel + beyond);
  log_ratios.push_back(kLevel + 0.5 * 1.25 * 0.014826);
  EXPECT_NEAR(bets_on(log_ratios).wealth_for(), wealth_of_scores({0.16, 0.32, 0.48, 0.64, 0.5}), 1e-9);
  log_ratios.back() = kLevel - 3;
  EXPECT_NEAR(bets_on(log_ratios).wealth_for(), wealth_of_scores({0.16, 0.32, 0.48, 0.64, -1}), 1e-9);
  const std::vector<double> equal = {kLevel, kLevel, kLevel, kLevel, kLevel + 0.5 * 1.25 * 0.004};  // The least scale.
  EXPECT_NEAR(bets_on(equal).wealth_for(), wealth_of_scores({0, 0, 0, 0, 0.5}), 1e-9);
}

TEST(Bets, NineFullScoresKeepAndSixDrop) {
  EXPECT_EQ(bets_on(std::vector<double>(8, 1.0)).outcome(), Outcome::open);
  const Bets kept = bets_on(std::vector<double>(9, 1.0));
  EXPECT_EQ(kept.outcome(), Outcome::pays);
  EXPECT_NEAR(kept.wealth_for(), 138.776, 1e-3);
  EXPECT_EQ(kept.pairs(), kPairsToKeep);
  EXPECT_EQ(bets_on(std::vector<double>(5, -1.0)).outcome(), Outcome::open);
  const Bets dropped = bets_on(std::vector<double>(6, -1.0));
  EXPECT_EQ(dropped.outcome(), Outcome::slower);
  EXPECT_EQ(dropped.pairs(), kPairsToDrop);
}

TEST(Bets, WhatIsNotSlowerAndGainsTooLittleIsDroppedAsNoGain) {
  // The first four scores are -0.317, all others -1.
  EXPECT_EQ(bets_on(std::vector<double>(8, 0.0)).outcome(), Outcome::open);
  EXPECT_EQ(bets_on(std::vector<double>(9, 0.0)).outcome(), Outcome::no_gain);
}

TEST(Bets, WhatIsDecidedStays) {
  Bets bets = bets_on(std::vector<double>(9, 1.0));
  for (int pair = 0; pair < 50; ++pair) bets.add(-1);
  EXPECT_GT(bets.wealth_against(), kWealthToDrop);
  EXPECT_EQ(bets.outcome(), Outcome::pays);
}

TEST(Bets, PairsThatAreNeededAreThoseThatDecideWhereTheyGoOnAsSoFar) {
  EXPECT_FALSE(Bets(kGainMin).pairs_needed());
  EXPECT_EQ(bets_on({1, 1, 1}).pairs_needed(), 6);
  EXPECT_EQ(bets_on(std::vector<double>(8, 1.0)).pairs_needed(), 1);
  EXPECT_EQ(bets_on({-1, -1}).pairs_needed(), 4);
  // Three full scores in four: the mean of the stakes' wealth is 97 after 45 pairs and 110 after 46.
  EXPECT_EQ(bets_on({1, 1, -1, 1}).pairs_needed(), 42);
  EXPECT_FALSE(bets_on({kLevel, kLevel}).pairs_needed());             // So it would never be decided,
  EXPECT_FALSE(bets_on({1, -1, 1, -1}).pairs_needed());               // nor so;
  EXPECT_FALSE(bets_on(std::vector<double>(9, 1.0)).pairs_needed());  // here it is.
}

// Log times of blocks one after the other.
using Blocks = std::function<double()>;

Blocks normal_blocks(double deviation, std::uint64_t seed) {
  return [random = std::mt19937_64(seed), normal = std::normal_distribution<double>(0, deviation)]() mutable {
    return normal(random);
  };
}

// Each block's noise is Student's t with 3 degrees of freedom, and 0.6 of the block's before.
Blocks heavy_and_correlated_blocks(double deviation, std::uint64_t seed) {
  return [random = std::mt19937_64(seed), deviation, last = 0.0]() mutable {
    last = 0.6 * last + deviation * std::student_t_distribution<double>(3)(random) / std::sqrt(3.0);
    return last;
  };
}

// One block in 20 begins a burst, in which three take 20 to 100 % longer.
Blocks blocks_with_bursts(double deviation, std::uint64_t seed) {
  return [random = std::mt19937_64(seed), deviation, left = 0, factor = 1.0]() mutable {
    std::uniform_real_distribution<double> uniform;
    if (left == 0 && uniform(random) < 0.05) {
      left = 3;
      factor = 1.2 + 0.8 * uniform(random);
    }
    const double burst = left > 0 ? std::log(factor) : 0.0;
    left = std::max(0, left - 1);
    return burst + std::normal_distribution<double>(0, deviation)(random);
  };
}

struct Trials {
  double kept = 0, dropped = 0;  // Shares.
  double median_pairs = 0;
  std::vector<std::vector<double>> log_ratios;  // Of each trial, up to its end.
};

// Of neighbouring blocks a coin says which runs with the change. A trial has at most 100 pairs.
Trials simulate(double gain, const Blocks& block, int runs) {
  std::mt19937_64 coins(17);
  Trials trials;
  std::vector<double> pairs;
  for (int run = 0; run < runs; ++run) {
    Bets bets(kGainMin);
    std::vector<double> log_ratios;
    while (bets.outcome() == Outcome::open && bets.pairs() < 100) {
      const double first = block(), second = block();
      log_ratios.push_back(std::log1p(gain) + (coins() % 2 == 0 ? first - second : second - first));
      bets.add(log_ratios.back());
    }
    trials.kept += bets.outcome() == Outcome::pays ? 1.0 / runs : 0.0;
    trials.dropped += bets.outcome() == Outcome::no_gain || bets.outcome() == Outcome::slower ? 1.0 / runs : 0.0;
    pairs.push_back(static_cast<double>(bets.pairs()));
    trials.log_ratios.push_back(std::move(log_ratios));
  }
  trials.median_pairs = median(pairs);
  return trials;
}

class BetsUnderNoise : public testing::TestWithParam<Blocks (*)(double, std::uint64_t)> {};

// A pair of blocks scatters by 0.10 where these are normal.
INSTANTIATE_TEST_SUITE_P(Noise, BetsUnderNoise,
                         testing::Values(normal_blocks, heavy_and_correlated_blocks, blocks_with_bursts));

TEST_P(BetsUnderNoise, AChangeWorthGainMinIsKeptInOneTrialOfAHundredAndDroppedInFive) {
  // Of 4,000 trials three standard deviations are 0.5 % and 1.0 %.
  const Trials trials = simulate(kGainMin, GetParam()(0.07, 1), 4000);
  EXPECT_LE(trials.kept, 0.02);
  EXPECT_LE(trials.dropped, 0.06);
}

TEST_P(BetsUnderNoise, AWorthlessChangeIsKeptInOneTrialOfTwoHundredAtMost) {
  EXPECT_LE(simulate(0, GetParam()(0.07, 2), 4000).kept, 0.005);
}

TEST_P(BetsUnderNoise, LargeGainsAndLossesAreFound) {
  EXPECT_GE(simulate(0.60, GetParam()(0.07, 3), 400).kept, 0.99);
  EXPECT_GE(simulate(-0.20, GetParam()(0.07, 4), 400).dropped, 0.99);
}

TEST(Bets, ALargeGainIsKeptAfterNineToElevenPairsAndALossDroppedAfterSixToEight) {
  const Trials gain = simulate(0.60, normal_blocks(0.07, 5), 500);
  EXPECT_GE(gain.median_pairs, 9);
  EXPECT_LE(gain.median_pairs, 11);
  const Trials loss = simulate(-0.20, normal_blocks(0.07, 6), 500);
  EXPECT_GE(loss.median_pairs, 6);
  EXPECT_LE(loss.median_pairs, 8);
}

// An interval of one look, though the pairs end where they decide.
TEST(Bets, TheIntervalBesideHoldsTheTruthInNearlyAsManyTrialsAsItSays) {
  for (const double gain : {-0.05, 0.0, 0.05, 0.10}) {
    int covered = 0;
    for (const auto& log_ratios : simulate(gain, normal_blocks(0.02, 7), 1000).log_ratios) {
      const Estimate interval = estimate_middle(log_ratios, kTailError, kTailError);
      covered += interval.low <= std::log1p(gain) && std::log1p(gain) <= interval.high;
    }
    EXPECT_GE(covered, 880) << gain;
  }
}

}  // namespace
}  // namespace headrace
