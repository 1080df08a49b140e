#include "insight/tune/joint_effects.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

using Turn = JointEffects::Turn;

TEST(JointEffects, NothingIsKnownBeforeThereIsAPair) {
  const JointEffects effects(2);
  EXPECT_EQ(effects.of(0), 0);
  EXPECT_EQ(effects.expected(std::vector<Turn>{{0, 1}, {1, -1}}), 0);
}

TEST(JointEffects, TellsChangesApartThatTakeTurnsTogether) {
  const std::vector<double> truth = {0.47, -0.22, 0.05, 0};
  JointEffects effects(truth.size());
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(0, 0.02);
  for (int pair = 0; pair < 20; ++pair) {
    std::vector<Turn> turns;
    double log_ratio = noise(random);
    for (std::size_t change = 0; change < truth.size(); ++change) {
      turns.push_back({change, random() % 2 == 0 ? 1.0 : -1.0});
      log_ratio += turns.back().sign * truth[change];
    }
    effects.add(turns, log_ratio);
  }
  for (std::size_t change = 0; change < truth.size(); ++change) EXPECT_NEAR(effects.of(change), truth[change], 0.03);
  EXPECT_NEAR(effects.expected(std::vector<Turn>{{0, 1}, {1, -1}}), 0.69, 0.05);
}

TEST(JointEffects, OneBurstMovesWhatManyPairsToldByLittle) {
  JointEffects effects(1);
  const std::vector<Turn> turns = {{0, 1}};
  for (int pair = 0; pair < 20; ++pair) effects.add(turns, 0.1);
  effects.add(turns, 3);
  EXPECT_NEAR(effects.of(0), 0.1, 0.03);
}

TEST(JointEffects, InDoubtItKeepsWhatItFoundAndLearnsAsFastAsAtFirst) {
  JointEffects effects(1);
  const std::vector<Turn> turns = {{0, 1}};
  for (int pair = 0; pair < 50; ++pair) effects.add(turns, 0.1);
  effects.doubt();
  EXPECT_NEAR(effects.of(0), 0.1, 0.01);
  for (int pair = 0; pair < 3; ++pair) effects.add(turns, 0.4);
  EXPECT_NEAR(effects.of(0), 0.4, 0.05);
}

}  // namespace
}  // namespace headrace
