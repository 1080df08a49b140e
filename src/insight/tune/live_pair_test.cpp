#include "insight/tune/live_pair.h"

#include <gtest/gtest.h>

#include <cmath>

#include "insight/tune/live_proof.h"

namespace headrace {
namespace {

using Block = LivePair::Block;

constexpr double kExpected_s = 0.1;

// Until the block at hand is whole, units of so many seconds each. How many.
int fill(LivePair& pair, double seconds) {
  int units = 0;
  while (!pair.is_whole()) {
    pair.add({.seconds = seconds}, kExpected_s);
    ++units;
  }
  return units;
}

TEST(LivePair, TheWashOutIsNotMeasured) {
  LivePair pair({.wash_out = 2, .measured = 3});
  EXPECT_EQ(pair.units(), 10);
  pair.add({.seconds = 9}, kExpected_s);
  EXPECT_FALSE(pair.is_washed_out(9));
  pair.add({.seconds = 9}, kExpected_s);
  EXPECT_TRUE(pair.is_washed_out(9));
  EXPECT_EQ(fill(pair, 0.2), 3);
  EXPECT_FALSE(pair.is_washed_out(9));
  pair.begin_second({.wash_out = 1, .measured = 4});
  EXPECT_EQ(pair.units(), 10);
  EXPECT_EQ(pair.planned(), 4);
  pair.add({.seconds = 9}, kExpected_s);
  EXPECT_EQ(fill(pair, 0.1), 4);
  EXPECT_DOUBLE_EQ(pair.log_ratio(), std::log(2.0));
  EXPECT_DOUBLE_EQ(pair.unit_s(Block::first), 0.2);
  EXPECT_DOUBLE_EQ(pair.unit_s(Block::second), 0.1);
  EXPECT_FALSE(pair.log_settling(Block::first));
}

TEST(LivePair, AUnitThatDoesNotCountMovesItsBlockNoFurther) {
  LivePair pair({.measured = 2});
  pair.add({.seconds = 0.1}, kExpected_s);
  for (int i = 0; i < 5; ++i) pair.add({.seconds = 60, .countable = false, .why_not = "evaluation"}, 0);
  EXPECT_FALSE(pair.is_whole());
  EXPECT_FALSE(pair.is_scattered());
  pair.add({.seconds = 0.3}, kExpected_s);
  EXPECT_TRUE(pair.is_whole());
  EXPECT_DOUBLE_EQ(pair.unit_s(Block::first), 0.2);
}

TEST(LivePair, AfterTooManyOfThemItIsNoPairOfNeighbours) {
  LivePair pair({.measured = 2});
  for (int i = 0; i < 20; ++i) pair.add({.seconds = 60, .countable = false}, 0);
  EXPECT_FALSE(pair.is_scattered());
  pair.add({.seconds = 60, .countable = false}, 0);
  EXPECT_TRUE(pair.is_scattered());
}

TEST(LivePair, TimesAreRelativeToWhatTheWorkLetsExpect) {
  LivePair pair(BlockUnits{});
  pair.add({.seconds = 0.6, .work = 3}, 0.3);
  EXPECT_DOUBLE_EQ(pair.ratio(), 2);
  pair.begin_second({});
  pair.add({.seconds = 0.1, .work = 1}, 0.1);
  EXPECT_DOUBLE_EQ(pair.log_ratio(), std::log(2.0));
}

TEST(LivePair, SettledUnitsAreMeasuredApartBehindAGap) {
  LivePair pair({.wash_out = 1, .measured = 1, .gap = 2, .settled = 2});
  for (const double seconds : {9.0, 0.3, 9.0, 9.0, 0.1, 0.1}) {
    EXPECT_FALSE(pair.is_whole());
    pair.add({.seconds = seconds}, kExpected_s);
  }
  EXPECT_TRUE(pair.is_whole());
  EXPECT_DOUBLE_EQ(pair.log_settling(Block::first).value(), std::log(3.0));
  EXPECT_DOUBLE_EQ(pair.unit_s(Block::first), 0.3);
}

TEST(LivePair, AWholeBlockThatGoesOnMeasuresOn) {
  LivePair pair(BlockUnits{});
  pair.add({.seconds = 0.1}, kExpected_s);
  ASSERT_TRUE(pair.is_whole());
  pair.add({.seconds = 0.3}, kExpected_s);
  EXPECT_DOUBLE_EQ(pair.unit_s(Block::first), 0.2);
}

TEST(LivePair, IsHalfMeasuredBehindTheWashOut) {
  LivePair pair({.wash_out = 1, .measured = 3});
  for (const bool is_half : {false, false, true, true}) {
    pair.add({.seconds = 0.1}, kExpected_s);
    EXPECT_EQ(pair.is_half_measured(), is_half);
  }
}

TEST(LivePair, SumsWhatWaitedForDataInEitherBlock) {
  LivePair pair({.wash_out = 1});
  pair.add({.seconds = 5, .wait_s = 4}, kExpected_s);
  pair.add({.seconds = 0.2, .wait_s = 0.1}, kExpected_s);
  pair.begin_second({});
  pair.add({.seconds = 0.1}, kExpected_s);
  EXPECT_DOUBLE_EQ(pair.seconds(Block::first), 0.2);
  EXPECT_DOUBLE_EQ(pair.wait_s(Block::first), 0.1);
  EXPECT_DOUBLE_EQ(pair.seconds(Block::second), 0.1);
  EXPECT_DOUBLE_EQ(pair.wait_s(Block::second), 0);
}

// With the change, units take half as long; `left_over`: those right behind it that run without it take longer.
LiveProof proof_of(int pairs, double left_over) {
  LiveProof proof({}, {{"a", "true"}}, 0.02);
  for (int i = 0; i < pairs; ++i) {
    const bool leads = change_leads(3, i);
    const BlockUnits with{.measured = 1}, without{.measured = 1, .gap = 1, .settled = 1};
    LivePair pair(leads ? with : without);
    const double noise = 1 + 0.01 * (i % 3 - 1);
    for (const bool changed : {leads, !leads}) {
      pair.add({.seconds = changed ? 0.05 * noise : 0.1 * left_over}, kExpected_s);
      while (!pair.is_whole()) pair.add({.seconds = 0.1 * noise}, kExpected_s);
      if (pair.at_hand() == Block::first) pair.begin_second(leads ? without : with);
    }
    proof.add(pair, leads, /*goes_on=*/false);
  }
  return proof;
}

// Of blocks without settled units: a pair whose second block is without the change, then one whose first block is, in
// turns. `left_over` as above; goes_on: the two blocks lie behind one another.
LiveProof proof_of_neighbours(int pairs, double left_over, bool goes_on) {
  LiveProof proof({}, {{"a", "true"}}, 0.02);
  for (int i = 0; i < pairs; ++i) {
    const bool leads = i % 2 == 0;
    LivePair pair(BlockUnits{});
    const double noise = 1 + 0.01 * (i % 3 - 1);
    pair.add({.seconds = leads ? 0.05 : 0.1 * noise}, kExpected_s);
    pair.begin_second({});
    pair.add({.seconds = leads ? 0.1 * left_over * noise : 0.05}, kExpected_s);
    proof.add(pair, leads, goes_on && !leads);
  }
  return proof;
}

TEST(LiveProof, TellsWhatTheChangeIsWorthWhicheverBlockLed) {
  const LiveProof proof = proof_of(12, 1);
  EXPECT_EQ(proof.record().pairs(), 12);
  EXPECT_NEAR(proof.record().gain()->median, 1, 0.02);
  EXPECT_EQ(proof.record().bets().outcome(), Outcome::pays);
  EXPECT_EQ(proof.without_s().size(), 12u);
  EXPECT_NEAR(proof.with_s().front(), 0.05, 0.001);
  EXPECT_NEAR(proof.without_s().front(), 0.1, 0.002);
}

TEST(LiveProof, TakesAsManyPairsAsTheRaceAndNoFewerThanBetsNeed) {
  EXPECT_EQ(pairs_of_proof(6), kPairsToKeep);
  EXPECT_EQ(pairs_of_proof(150), 150);
}

TEST(LiveProof, WhatIsLeftOverOfTheChangeIsFoundWhereItIsAQuarterOfItsEffect) {
  EXPECT_FALSE(proof_of(12, 1).carry_over());
  EXPECT_FALSE(proof_of(12, 1.1).carry_over());  // A seventh.
  EXPECT_NEAR(proof_of(12, 1.5).carry_over().value(), std::log(1.5), 0.02);
  EXPECT_FALSE(proof_of(3, 1.5).carry_over());  // Of too few blocks nothing is known.
}

TEST(LiveProof, BlocksWithoutTheChangeBehindOneAnotherTellOfWhatIsLeftOverToo) {
  EXPECT_NEAR(proof_of_neighbours(24, 1.5, true).carry_over().value(), std::log(1.5), 0.03);
  EXPECT_FALSE(proof_of_neighbours(24, 1, true).carry_over());
  EXPECT_FALSE(proof_of_neighbours(24, 1.5, false).carry_over());  // Something else lay in between.
  EXPECT_FALSE(proof_of_neighbours(7, 1.5, true).carry_over());    // Of three nothing is known.
}

TEST(LiveProof, LooksForItInTheFirstBlocksAlone) {
  EXPECT_TRUE(proof_of(5, 1).looks_for_carry_over());
  EXPECT_FALSE(proof_of(6, 1).looks_for_carry_over());
}

TEST(LiveProof, WhetherTheLoopMayWaitIsOfEitherArmAndNotKnownAtFirst) {
  const auto proof_of_waiting = [](double without_s, double with_s) {
    LiveProof proof({}, {{"a", "true"}}, 0.02);
    EXPECT_TRUE(proof.may_wait());
    LivePair pair(BlockUnits{});
    pair.add({.seconds = 0.1, .wait_s = with_s}, kExpected_s);
    pair.begin_second({});
    pair.add({.seconds = 0.1, .wait_s = without_s}, kExpected_s);
    proof.add(pair, /*change_led=*/true, /*goes_on=*/false);
    return proof;
  };
  EXPECT_FALSE(proof_of_waiting(0.002, 0.002).may_wait());
  EXPECT_TRUE(proof_of_waiting(0.05, 0).may_wait());
  EXPECT_TRUE(proof_of_waiting(0, 0.05).may_wait());
  EXPECT_DOUBLE_EQ(proof_of_waiting(0.02, 0.05).wait_share(), 0.5);
}

TEST(LiveProof, WhichBlockLeadsIsAFairCoinOfEachPair) {
  int leads = 0, as_before = 0;
  for (std::int64_t number = 1; number <= 4000; ++number) {
    leads += change_leads(1, number);
    as_before += change_leads(1, number) == change_leads(1, number - 1);
  }
  EXPECT_NEAR(leads, 2000, 130);
  EXPECT_NEAR(as_before, 2000, 130);
}

}  // namespace
}  // namespace headrace
