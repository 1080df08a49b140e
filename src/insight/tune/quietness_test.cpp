#include "insight/tune/quietness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "insight/tune/bets.h"

namespace headrace {
namespace {

using testing::HasSubstr;

// Blocks of 0.2 s whose log times scatter by `deviation`.
std::vector<double> blocks(double deviation, int count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) seconds.push_back(0.2 * std::exp(normal(random)));
  return seconds;
}

CpuUse use_of(double own, double others, double idle) {
  return {own, others, 0.0, idle, 0.2, 0.3, std::nullopt, std::nullopt};
}

TEST(Quietness, ScatterIsThatOfNeighbouringBlocksAndSingleBurstsDoNotMoveIt) {
  auto many = blocks(0.05, 4000);
  EXPECT_NEAR(scatter_of(many).value(), 0.05 * std::sqrt(2), 0.004);
  for (std::size_t i = 0; i < many.size(); i += 20) many[i] *= 3;
  EXPECT_NEAR(scatter_of(many).value(), 0.05 * std::sqrt(2), 0.015);
  std::vector<double> drifting;  // By 30 % in all: neighbours hardly differ.
  for (int i = 0; i < 100; ++i) drifting.push_back(0.2 * (1 + 0.003 * i));
  EXPECT_LT(scatter_of(drifting).value(), 0.005);
  EXPECT_GT(lag_of(drifting).value(), 0.9);
  EXPECT_NEAR(lag_of(blocks(0.05, 4000)).value(), 0, 0.05);
}

TEST(Quietness, OfTooFewBlocksTheSpreadIsUnavailable) {
  EXPECT_FALSE(scatter_of(blocks(0.05, 5)));
  EXPECT_FALSE(lag_of(blocks(0.05, 5)));
  EXPECT_TRUE(scatter_of(blocks(0.05, 6)));
  EXPECT_FALSE(lag_of(std::vector<double>(6, 0.2)));
  const Quietness found = judge_quietness(blocks(0.05, 2), {}, 0.02);
  EXPECT_FALSE(found.quiet);
  EXPECT_EQ(found.pairs_needed, 0);
  EXPECT_THAT(found.sentence, HasSubstr("Whether this machine is quiet is unavailable"));
}

TEST(Quietness, PairsGrowWithTheSquareOfTheScatterBetweenTheirBounds) {
  EXPECT_EQ(pairs_to_decide(0.01, 0.02), kPairsToKeep);
  EXPECT_EQ(pairs_to_decide(10, 0.02), kPairsPlannedMax);
  const auto at_ten_percent = pairs_to_decide(0.10, 0.02), at_fifteen = pairs_to_decide(0.15, 0.02);
  EXPECT_EQ(at_ten_percent, 23);
  EXPECT_NEAR(static_cast<double>(at_fifteen) / static_cast<double>(at_ten_percent), 2.25, 0.1);
  EXPECT_LE(pairs_to_decide(0.10, 0.5), kPairsPlannedMax);  // No gain to plan for beyond gain_min.
}

TEST(Quietness, BlocksThatDifferTooMuchMakeAMachineNotQuiet) {
  EXPECT_TRUE(judge_quietness(blocks(0.02, 12), use_of(0.9, 0, 0.1), 0.02).quiet.value());
  const Quietness found = judge_quietness(blocks(0.3, 12), use_of(0.9, 0, 0.1), 0.02);
  EXPECT_FALSE(found.quiet.value());
  EXPECT_GT(found.pairs_needed, kPairsPlannedMax / 2);
  EXPECT_THAT(found.sentence, HasSubstr("This machine is not quiet"));
}

TEST(Quietness, OthersWhoTakeTheCoresMakeAMachineNotQuietUnlessSomeAreIdle) {
  const auto quiet = [](double others, double steal, double idle) {
    CpuUse use = use_of(0.5, others, idle);
    use.steal = steal;
    return judge_quietness(blocks(0.02, 12), use, 0.02).quiet.value();
  };
  EXPECT_FALSE(quiet(0.5, 0, 0));
  EXPECT_FALSE(quiet(0, 0.2, 0));  // The host's other machines.
  EXPECT_TRUE(quiet(0.5, 0, 0.3));
  EXPECT_TRUE(quiet(0.05, 0, 0));
}

TEST(Quietness, WhatTheSystemDoesNotShowIsCalledUnavailable) {
  const Quietness found = judge_quietness(blocks(0.02, 12), {}, 0.02);
  EXPECT_TRUE(found.quiet.value());
  EXPECT_FALSE(found.others || found.pressure || found.idle);
  EXPECT_THAT(found.sentence, HasSubstr("other programs take unavailable"));
  EXPECT_THAT(found.sentence, HasSubstr("a core unavailable"));
}

}  // namespace
}  // namespace headrace
