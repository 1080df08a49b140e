#include "insight/tune/live_account.h"

#include <gtest/gtest.h>

#include <limits>

namespace headrace {
namespace {

// A run as written so far, of so many units of 100 ms.
LiveAccount account_of(int units, double lost_s = 10, double lost_share = 0.02) {
  LiveAccount account(lost_s, lost_share);
  for (int i = 0; i < units; ++i) account.add({.seconds = 0.1}, InForce::as_written, 0, true);
  return account;
}

TEST(LiveBudget, AllowsAShareOfTheTimeSoFarWhereTheLengthIsUnknown) {
  LiveBudget budget(10, 0.02);
  EXPECT_TRUE(budget.grows());
  EXPECT_DOUBLE_EQ(budget.allowed_s(), 10);
  budget.add(100, 0);
  EXPECT_DOUBLE_EQ(budget.allowed_s(), 12);
  budget.add(50, 25);  // 25 s of these the loop as written would not have taken.
  EXPECT_DOUBLE_EQ(budget.allowed_s(), 10 + 0.02 * 125);
}

TEST(LiveBudget, AllowsAShareOfTheWholeRunWhereItIsKnown) {
  LiveBudget budget(10, 0.02);
  budget.add(100, 20);
  budget.expect_rest(920);
  EXPECT_FALSE(budget.grows());
  EXPECT_DOUBLE_EQ(budget.allowed_s(), 30);
  budget.add(50, 0);  // It is part of what was expected.
  EXPECT_DOUBLE_EQ(budget.allowed_s(), 30);
  EXPECT_TRUE(budget.has_room(10));
  EXPECT_FALSE(budget.has_room(10.1));
}

TEST(LiveBudget, RemembersTheMostThatTheRunWasBehind) {
  LiveBudget budget(10, 0);
  budget.add(10, 4);
  budget.add(10, -6);
  EXPECT_DOUBLE_EQ(budget.behind_s(), -2);
  EXPECT_DOUBLE_EQ(budget.most_behind_s(), 4);
  EXPECT_TRUE(budget.has_room(12));
  EXPECT_FALSE(budget.grows());
}

TEST(LiveAccount, AUnitOfATrialIsBehindByWhatItTookMore) {
  LiveAccount account = account_of(20);
  account.note_switch();
  EXPECT_DOUBLE_EQ(account.next_excess_s(), 0);
  account.add({.seconds = 0.25}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.15, 1e-9);
  EXPECT_NEAR(account.next_excess_s(), 0.15, 1e-9);
  account.add({.seconds = 0.06}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.11, 1e-9);
  EXPECT_DOUBLE_EQ(account.next_excess_s(), 0);
  EXPECT_DOUBLE_EQ(account.unit_s(), 0.1);  // Trials tell nothing of the loop as written.
}

TEST(LiveAccount, ASlowerMachineIsNobodysLossWhileTheLoopIsAsWritten) {
  LiveAccount account = account_of(20);
  for (int i = 0; i < 20; ++i) account.add({.seconds = 0.3}, InForce::as_written, 0, true);
  EXPECT_DOUBLE_EQ(account.budget().behind_s(), 0);
  EXPECT_DOUBLE_EQ(account.unit_s(), 0.3);
}

TEST(LiveAccount, WhatTheTunerItselfTookIsLost) {
  LiveAccount account = account_of(20);
  account.add({.seconds = 0.5}, InForce::as_written, 0.4, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.4, 1e-9);
  account.add({.seconds = 60, .countable = false}, InForce::as_written, 0.2, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.6, 1e-9);
}

TEST(LiveAccount, WhatIsLeftOfATrialInAUnitAsWrittenIsLostToo) {
  LiveAccount account = account_of(20);
  account.add({.seconds = 0.14}, InForce::as_written, 0, false);
  EXPECT_NEAR(account.budget().behind_s(), 0.04, 1e-9);
  EXPECT_DOUBLE_EQ(account.unit_s(), 0.1);
}

TEST(LiveAccount, UnderWhatIsKeptTheRunIsAheadByWhatWasProved) {
  LiveAccount account = account_of(20);
  EXPECT_FALSE(account.is_ahead());
  account.scale_kept(0.5);
  EXPECT_TRUE(account.is_ahead());
  for (int i = 0; i < 12; ++i) account.add({.seconds = 0.2}, InForce::kept, 0, true);  // On a machine that is slower.
  EXPECT_NEAR(account.budget().behind_s(), -12 * 0.2, 1e-9);
  EXPECT_DOUBLE_EQ(account.unit_s(), 0.4);
  account.scale_kept(2);  // Taken out again.
  EXPECT_FALSE(account.is_ahead());
}

TEST(LiveAccount, AUnitThatDoesNotCountIsAsSlowAsTheOneBeforeItUnderTheSameSettings) {
  LiveAccount account = account_of(20);
  account.note_switch();
  account.add({.seconds = 30, .countable = false}, InForce::trial, 0, true);
  EXPECT_DOUBLE_EQ(account.budget().behind_s(), 0);  // Nothing is known of them.
  account.add({.seconds = 0.2}, InForce::trial, 0, true);
  account.add({.seconds = 30, .countable = false}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.1 + 15, 1e-9);
}

TEST(LiveAccount, TheRestOfTheRunTakesWhatItsUpdatesTakeAsWritten) {
  LiveAccount account = account_of(100);
  account.expect_rest(900);
  EXPECT_NEAR(account.budget().allowed_s(), 10 + 0.02 * 100, 1e-9);
  account.expect_rest(std::nullopt);
  EXPECT_NEAR(account.budget().allowed_s(), 10 + 0.02 * 10, 1e-9);
}

TEST(LiveAccount, UnitsOfAnotherLengthAreNoticedOnceAndThoseOfTrialsAreNot) {
  LiveAccount account = account_of(100);
  for (int i = 0; i < 200; ++i) account.add({.seconds = 0.2}, InForce::trial, 0, true);
  EXPECT_FALSE(account.take_shift());
  account.scale_kept(0.5);
  EXPECT_DOUBLE_EQ(account.kept_unit_s(), 0.05);
  for (int i = 0; i < 100; ++i) account.add({.seconds = 0.05}, InForce::kept, 0, true);
  EXPECT_FALSE(account.take_shift());
  for (int i = 0; i < 100; ++i) account.add({.seconds = 0.1}, InForce::kept, 0, true);
  EXPECT_TRUE(account.take_shift());
  EXPECT_FALSE(account.take_shift());
}

// Two workers hand out their batches together, so that every other unit waits; now and then one more or less does.
TEST(LiveAccount, BatchesThatComeSeveralAtATimeAreNoOtherLengthAndNobodysLoss) {
  LiveAccount account(10, 0.02);
  const auto add = [&](int i, InForce in_force) {
    const double wait_s = i % 2 == 0 || i % 29 == 0 ? 0.14 : 0;
    account.add({.seconds = 0.03 + wait_s, .wait_s = wait_s}, in_force, 0, true);
  };
  for (int i = 0; i < 600; ++i) add(i, InForce::as_written);
  EXPECT_FALSE(account.take_shift());
  EXPECT_NEAR(account.unit_s(), 0.1, 0.01);
  account.note_switch();
  for (int i = 0; i < 100; ++i) {
    add(i, InForce::trial);
    EXPECT_TRUE(i <= 10 || account.next_excess_s() < 0.03) << i;
  }
  EXPECT_NEAR(account.budget().behind_s(), 0, 1);  // Of 10 s.
}

// What is loaded ahead is used up first.
TEST(LiveAccount, ATrialThatComesToWaitForDataIsTakenAsItIsNow) {
  LiveAccount account = account_of(20);
  account.note_switch();
  for (int i = 0; i < 20; ++i) account.add({.seconds = 0.1}, InForce::trial, 0, true);
  EXPECT_NEAR(account.next_excess_s(), 0, 1e-9);
  for (int i = 0; i < 4; ++i) account.add({.seconds = 0.16, .wait_s = 0.06}, InForce::trial, 0, true);
  EXPECT_NEAR(account.next_excess_s(), 0.03, 1e-9);
  for (int i = 0; i < 4; ++i) account.add({.seconds = 0.16, .wait_s = 0.06}, InForce::trial, 0, true);
  EXPECT_NEAR(account.next_excess_s(), 0.06, 1e-9);
}

TEST(LiveAccount, AClockThatJumpsLosesNothing) {
  LiveAccount account = account_of(20);
  for (const double seconds : {-3.0, std::numeric_limits<double>::quiet_NaN()}) {
    account.add({.seconds = seconds}, InForce::trial, 0.1, true);
  }
  EXPECT_DOUBLE_EQ(account.budget().behind_s(), 0);
  EXPECT_NEAR(account.budget().elapsed_s(), 2, 1e-9);
}

TEST(LiveAccount, AUnitThatWasHeldUpIsNobodysLoss) {
  LiveAccount account = account_of(20);
  account.note_switch();
  account.add({.seconds = 0.12}, InForce::trial, 0, true);
  account.add({.seconds = 60}, InForce::trial, 0.01, true);  // A process that was stopped for a minute.
  EXPECT_NEAR(account.budget().behind_s(), 0.02 + 0.02 + 0.01, 1e-9);
  EXPECT_NEAR(account.budget().elapsed_s(), 2 + 0.12 + 60, 1e-9);
  EXPECT_NEAR(account.next_excess_s(), 0.02, 1e-9);
  account.add({.seconds = 0.12}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 0.07, 1e-9);
  account.note_switch();
  account.add({.seconds = 60}, InForce::as_written, 0, false);  // In the first unit behind a switch.
  account.note_switch();
  account.add({.seconds = 60}, InForce::trial, 0, true);  // Of other settings than the one before.
  EXPECT_NEAR(account.budget().behind_s(), 0.07, 1e-9);
}

TEST(LiveAccount, LongUnitsOfATrialInARowCountBothAndAreNoStallFromThenOn) {
  LiveAccount account = account_of(20);
  account.note_switch();
  account.add({.seconds = 0.1}, InForce::trial, 0, true);
  account.add({.seconds = 2.1}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 0, 1e-9);
  account.add({.seconds = 3.1}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 5, 1e-9);
  EXPECT_NEAR(account.next_excess_s(), 3, 1e-9);
  account.note_switch();
  account.add({.seconds = 3.1}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 8, 1e-9);
}

TEST(LiveAccount, ALongUnitThatWaitedForDataOrPreparedSomethingCounts) {
  LiveAccount account = account_of(20);
  account.note_switch();
  account.add({.seconds = 4.1, .wait_s = 4}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 4, 1e-9);
  account.note_switch(/*prepares=*/true);
  account.add({.seconds = 5.1}, InForce::trial, 0, true);
  EXPECT_NEAR(account.budget().behind_s(), 9, 1e-9);
}

}  // namespace
}  // namespace headrace
