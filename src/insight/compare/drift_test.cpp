#include "insight/compare/drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace headrace {
namespace {

const double kMin = std::log(1.02);
constexpr double kDeviation = 0.005;

// Builds that were each compared with the one before.
std::vector<HistoryPoint> chain(const std::vector<double>& effects) {
  std::vector<HistoryPoint> points{{.label = "0"}};
  for (const double effect : effects) {
    const std::size_t parent = points.size() - 1;
    points.push_back({std::to_string(points.size()), parent, effect, kDeviation});
  }
  return points;
}

// Builds that were all compared with the first one.
std::vector<HistoryPoint> star(const std::vector<double>& levels) {
  std::vector<HistoryPoint> points{{.label = "0"}};
  for (const double level : levels) points.push_back({std::to_string(points.size()), 0, level, kDeviation});
  return points;
}

TEST(Drift, OnePercentABuildIsFoundOverTenBuilds) {
  const std::vector<HistoryPoint> points = chain(std::vector<double>(10, std::log(1.01)));
  const std::vector<Drift> drifts = find_drifts(points, kMin);
  ASSERT_EQ(drifts.size(), 1);
  EXPECT_EQ(drifts[0].first, 0);
  EXPECT_EQ(drifts[0].last, 10);
  EXPECT_NEAR(drifts[0].effect, 10 * std::log(1.01), 1e-12);
  EXPECT_GT(drifts[0].low, 0.05);
  for (const double effect : std::vector<double>(10, std::log(1.01))) EXPECT_LT(effect, kMin) << "none by itself";
}

TEST(Drift, OneStepIsNamedByItsBuild) {
  std::vector<double> effects(12, 0.0);
  effects[5] = 0.05;
  const std::vector<Drift> drifts = find_drifts(chain(effects), kMin);
  ASSERT_EQ(drifts.size(), 1);
  EXPECT_EQ(drifts[0].first, 5);
  EXPECT_EQ(drifts[0].last, 6);
  EXPECT_EQ(drifts[0].largest, 6);
}

TEST(Drift, AStepAndItsMendAreTwoInOrderOfTime) {
  std::vector<double> effects(20, 0.0);
  effects[4] = 0.06;
  effects[14] = -0.06;
  const std::vector<Drift> drifts = find_drifts(chain(effects), kMin);
  ASSERT_EQ(drifts.size(), 2);
  EXPECT_EQ(drifts[0].last, 5);
  EXPECT_GT(drifts[0].effect, 0);
  EXPECT_EQ(drifts[1].last, 15);
  EXPECT_LT(drifts[1].effect, 0);
}

TEST(Drift, BuildsThatWereAllComparedWithOneReleaseAreJudgedByTheirDifferences) {
  const std::vector<Drift> drifts = find_drifts(star({0, 0, 0, 0, 0.05, 0.05, 0.05, 0.05}), kMin);
  ASSERT_EQ(drifts.size(), 1);
  EXPECT_EQ(drifts[0].largest, 5);
  EXPECT_NEAR(drifts[0].largest_effect, 0.05, 1e-12);
}

TEST(Drift, BuildsThatNothingConnectsAreNotCompared) {
  std::vector<HistoryPoint> points = chain({0, 0});
  points.push_back({.label = "elsewhere"});
  points.push_back({"there", 3, 0.0, kDeviation});
  EXPECT_TRUE(find_drifts(points, kMin).empty());
  EXPECT_TRUE(find_drifts({}, kMin).empty());
}

TEST(Drift, WhatIsWithinTheToleranceIsNone) {
  EXPECT_TRUE(find_drifts(chain({0.019}), kMin).empty()) << "four deviations, and too small to matter";
}

// One in a hundred by the bound; more than six of 200 in one of ten thousand tests.
TEST(Drift, NoiseAloneIsNone) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, kDeviation);
  int found = 0;
  for (int history = 0; history < 200; ++history) {
    std::vector<double> effects;
    for (int build = 0; build < 20; ++build) effects.push_back(noise(random));
    found += !find_drifts(chain(effects), kMin).empty();
  }
  EXPECT_LE(found, 6);
}

TEST(Drift, OfALongHistoryTheLastBuildsCount) {
  std::vector<double> effects(400, 0.0);
  effects[10] = 0.5;
  effects[390] = 0.05;
  const std::vector<Drift> drifts = find_drifts(chain(effects), kMin);
  ASSERT_EQ(drifts.size(), 1);
  EXPECT_EQ(drifts[0].last, 391) << "by its place in the whole history";
}

}  // namespace
}  // namespace headrace
