#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "insight/tune/live_tuned_run.h"

namespace headrace {
namespace {

using testing::HasSubstr;

TEST(LiveTuner, AKnobThatCannotBeAppliedFailsAloneAndTheOthersGoOn) {
  TunedRun run({}, {{"a", {.time_factor = 1 / 1.5}}, {"b", {.apply_throws = true}}, {"c", {.time_factor = 1.2}}});
  run.loop.updates_in_all = 3000;
  while (!run.loop.ended && run.loop.updates < 2000) {
    run.loop.step(run.tuner);
    ASSERT_EQ(run.tuner.in_force(), run.loop.settings);
  }
  EXPECT_EQ(run.trial("b").verdict, Verdict::failed);
  EXPECT_THAT(run.trial("b").sentence, HasSubstr("fake: b cannot be applied"));
  EXPECT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
  EXPECT_EQ(run.trial("c").verdict, Verdict::refused) << run.trial("c").sentence;
}

TEST(LiveTuner, AnExceptionThatIsNoErrorPassesThroughAndLeavesTheTunerUsable) {
  TunedRun run({}, {{"a", {.time_factor = 1 / 1.5}}, {"b", {}}});
  run.loop.updates_in_all = 3000;
  int interrupts = 0;
  for (int i = 0; i < 600; ++i) {
    if (i % 37 == 0) run.loop.interrupts_next_apply = true;
    try {
      run.loop.step(run.tuner);
    } catch (const Interrupt&) {
      ++interrupts;
    }
    ASSERT_EQ(run.tuner.in_force(), run.loop.settings) << i;
  }
  EXPECT_GT(interrupts, 5);
  EXPECT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
}

// Each time for a minute, in a unit on trial.
TEST(LiveTuner, AProcessThatIsStoppedNowAndThenLosesNothingOfWhatMayBeLost) {
  TunedRun run({.noise = 0.02}, {{"a", {.time_factor = 1 / 1.5}}}, {.lost_s = 3, .lost_share = 0});
  run.loop.updates_in_all = 4000;
  run.steps(36);  // It has been on by then.
  int stops = 0;
  for (int i = 0; i < 300 && stops < 3; ++i) {
    const bool is_on_trial = run.loop.settings.contains("a") && run.trial("a").verdict != Verdict::kept;
    run.loop.machine.unit_s = is_on_trial ? 60 : 0.1;
    run.steps(1);
    run.loop.machine.unit_s = 0.1;
    if (!is_on_trial) continue;
    run.steps(20);
    ++stops;
  }
  EXPECT_GE(stops, 2);
  ASSERT_TRUE(run.until_over(3500));
  EXPECT_LE(run.tuner.ledger().lost_most_s, 3);
  EXPECT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
}

TEST(LiveTuner, WhatWasOnWhenTheLoopFailedIsOutOfTheRace) {
  TunedRun run({}, {{"a", {}}, {"b", {}}, {"c", {}}, {"d", {}}});
  run.steps(60);
  for (int i = 0; i < 100 && run.loop.settings.empty(); ++i) run.loop.step(run.tuner);
  const Settings on = run.loop.settings;
  ASSERT_FALSE(on.empty());
  run.tuner.failed(ErrorCode::numerics, "the loss is not finite");
  EXPECT_TRUE(run.loop.settings.empty());
  const auto from = run.loop.in_force_of_unit.size();
  run.steps(200);
  for (const auto& [key, value] : on) {
    EXPECT_EQ(run.trial(key).verdict, Verdict::failed) << key;
    EXPECT_EQ(run.trial(key).sentence, "Failed: the loss is not finite.") << key;
    EXPECT_EQ(run.units_under(key, from), 0) << key;
  }
  for (const char* key : {"a", "b", "c", "d"}) {
    EXPECT_EQ(run.units_under(key, from) > 0, !on.contains(key)) << key;
  }
}

TEST(LiveTuner, AChangeThatFailsAtItsFirstVisitIsOutAloneAndWhatWasOnBeforeGoesOn) {
  int visits = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TunedRun run({}, {{"a", {}}, {"b", {}}, {"c", {}}, {"d", {}}}, {}, seed);
    Settings seen;
    const auto unseen = [&] {
      Settings left = run.loop.settings;
      std::erase_if(left, [&](const auto& setting) { return seen.contains(setting.first); });
      return left;
    };
    for (int i = 0; i < 400 && (unseen().empty() || run.loop.settings.size() < 2); ++i) {
      seen.insert(run.loop.settings.begin(), run.loop.settings.end());
      run.loop.step(run.tuner);
    }
    if (run.loop.settings.size() < 2 || unseen().empty()) continue;  // Each came first when it was on alone.
    ++visits;
    const Settings newcomer = unseen();
    ASSERT_EQ(newcomer.size(), 1U);
    run.tuner.failed(ErrorCode::internal, "broken");
    for (const char* key : {"a", "b", "c", "d"}) {
      EXPECT_EQ(run.trial(key).verdict == Verdict::failed, newcomer.contains(key)) << key << ", seed " << seed;
    }
  }
  EXPECT_GE(visits, 10);
}

TEST(LiveTuner, OfWhatWasOnTheChangesThatSetAKeyAtFaultAreOutAndTheOthersGoOn) {
  TunedRun run({}, {{"a", {}}, {"b", {}}, {"c", {}}, {"d", {}}});
  run.steps(60);
  for (int i = 0; i < 400 && run.loop.settings.size() < 2; ++i) run.loop.step(run.tuner);
  ASSERT_GE(run.loop.settings.size(), 2u);
  const Settings on = run.loop.settings;
  const std::string at_fault = on.begin()->first;
  run.tuner.failed(ErrorCode::unsupported, "given up after 4 recompilations", {at_fault, "none such"});
  EXPECT_TRUE(run.loop.settings.empty());
  const auto from = run.loop.in_force_of_unit.size();
  run.steps(200);
  for (const char* key : {"a", "b", "c", "d"}) {
    if (key == at_fault) {
      EXPECT_EQ(run.trial(key).sentence, "Failed: given up after 4 recompilations.");
      EXPECT_EQ(run.units_under(key, from), 0);
    } else {
      EXPECT_NE(run.trial(key).verdict, Verdict::failed) << key;
      EXPECT_GT(run.units_under(key, from), 0) << key;
    }
  }
}

TEST(LiveTuner, AKeyAtFaultThatNothingAtHandSetsLeavesThePairAsItIs) {
  TunedRun run({}, {{"a", {}}, {"b", {}}});
  run.steps(60);
  run.until_on_trial();
  const std::int64_t applied = run.loop.applied;
  run.tuner.failed(ErrorCode::unsupported, "not one of these", {"none such"});
  EXPECT_EQ(run.loop.applied, applied);
  EXPECT_TRUE(run.tuner.watching());
  EXPECT_EQ(run.trial("a").verdict, Verdict::inconclusive);
  // One that waits for its replay is out, too.
  TunedRun waits({}, {{"a", {}}, {"b", {}}});
  waits.steps(3);
  waits.tuner.failed(ErrorCode::unsupported, "not here", {"b"});
  waits.steps(100);
  EXPECT_EQ(waits.trial("b").sentence, "Failed: not here.");
  EXPECT_EQ(waits.loop.replayed, (std::vector<Settings>{Settings{{"a", "true"}}}));
}

TEST(LiveTuner, AKeptChangeThatSetsAKeyAtFaultIsTakenOut) {
  TunedRun run({}, {{"a", {.time_factor = 1 / 1.6}}, {"b", {.time_factor = 1 / 1.02}}});
  for (int i = 0; i < 50 && run.trial("a").verdict != Verdict::kept; ++i) run.steps(20);
  ASSERT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
  run.tuner.failed(ErrorCode::unsupported, "given up after 4 recompilations", {"a"});
  EXPECT_FALSE(run.loop.settings.contains("a"));
  const auto from = run.loop.in_force_of_unit.size();
  run.steps(200);
  EXPECT_EQ(run.units_under("a", from), 0);
  EXPECT_EQ(run.trial("a").verdict, Verdict::failed);
  EXPECT_TRUE(run.trial("a").removed_again);
  EXPECT_FALSE(run.tuner.ledger().ledger.best.contains("a"));
  EXPECT_EQ(run.tuner.in_force(), run.loop.settings);
}

TEST(LiveTuner, MemoryThatRanOutUnderAChangeIsItsReason) {
  TunedRun run({}, {{"a", {}}});
  run.until_on_trial();
  run.tuner.failed(ErrorCode::out_of_memory, "8 GiB were asked for");
  EXPECT_EQ(run.trial("a").verdict, Verdict::refused);
  EXPECT_EQ(run.trial("a").reason, Reason::memory);
}

TEST(LiveTuner, ALoopThatFailsWithNothingOnTrialEndsTheSearch) {
  TunedRun run({}, {{"a", {}}});
  run.steps(10);
  run.tuner.failed(ErrorCode::internal, "index out of range");
  EXPECT_FALSE(run.tuner.watching());
  EXPECT_THAT(run.tuner.ledger().end_reason, HasSubstr("index out of range"));
  run.steps(100);
  EXPECT_EQ(run.loop.applied, 0);
}

TEST(LiveTuner, StopInTheMiddleOfAPairUndoesWhatIsNotKeptAndAppliesNothingMore) {
  TunedRun run({}, {{"a", {}}, {"b", {}}});
  run.until_on_trial();
  run.tuner.stop("enough");
  EXPECT_TRUE(run.loop.settings.empty());
  EXPECT_FALSE(run.tuner.watching());
  EXPECT_FALSE(run.tuner.keeps_call());
  const std::int64_t applied = run.loop.applied;
  run.steps(50);
  run.tuner.failed(ErrorCode::internal, "too late");
  run.tuner.stop("again");
  EXPECT_EQ(run.loop.applied, applied);
  const LiveLedger ledger = run.tuner.ledger();
  EXPECT_TRUE(ledger.ended);
  EXPECT_EQ(ledger.end_reason, "enough");
  EXPECT_EQ(run.trial("a").verdict, Verdict::inconclusive);
  EXPECT_EQ(run.trial("a").reason, Reason::none);
  EXPECT_TRUE(ledger.turns.back().settings.empty());
}

TEST(LiveTuner, StopKeepsWhatIsProvedAndUndoTakesThatToo) {
  TunedRun run({}, {{"a", {.time_factor = 1 / 1.6}}, {"b", {.time_factor = 1.02}}});
  for (int i = 0; i < 50 && run.trial("a").verdict != Verdict::kept; ++i) run.steps(20);
  ASSERT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
  run.tuner.stop("enough");
  EXPECT_EQ(run.loop.settings, (Settings{{"a", "true"}}));
  run.tuner.undo();
  EXPECT_TRUE(run.loop.settings.empty());
  EXPECT_TRUE(run.tuner.in_force().empty());
  const std::int64_t applied = run.loop.applied;
  run.steps(50);
  run.tuner.undo();
  EXPECT_EQ(run.loop.applied, applied);
  EXPECT_EQ(run.trial("a").verdict, Verdict::kept);  // What was found stays.
}

TEST(LiveTuner, UndoInTheMiddleOfAPairGoesBackInOneSwitch) {
  TunedRun run({}, {{"a", {}}});
  run.until_on_trial();
  const std::int64_t applied = run.loop.applied;
  run.tuner.undo();
  EXPECT_EQ(run.loop.applied, applied + 1);
  EXPECT_TRUE(run.loop.settings.empty());
}

TEST(LiveTuner, ARunOfThreeStepsIsLeftAsItIs) {
  TunedRun run({}, {{"a", {}}});
  run.loop.updates_in_all = 3;
  run.steps(3);
  run.tuner.stop("the run ended");
  EXPECT_EQ(run.loop.applied, 0);
  const LiveLedger ledger = run.tuner.ledger();
  EXPECT_EQ(ledger.updates, 3);
  EXPECT_TRUE(ledger.turns.empty());
  EXPECT_EQ(run.trial("a").verdict, Verdict::inconclusive);
}

// After 22 updates the loop is known. A race and a proof take two blocks of two updates for each of 18 pairs at least.
TEST(LiveTuner, ARunTooShortToDecideAnythingIsLeftAsItIs) {
  const Effects one = {{"a", {.time_factor = 0.5}}}, two = {{"a", {.time_factor = 0.5}}, {"b", {}}};
  const auto run_of = [](const Effects& effects, std::int64_t updates) {
    auto run = std::make_unique<TunedRun>(LiveMachine{}, effects);
    run->loop.updates_in_all = updates;
    run->steps(updates);
    return run;
  };
  const auto too_short = run_of(two, 22 + 59);
  EXPECT_EQ(too_short->loop.applied, 0);
  EXPECT_EQ(too_short->tuner.ledger().end_reason, "59 updates are left, the clearest change takes 60");
  EXPECT_GT(run_of(two, 22 + 60)->loop.applied, 0);
  // Of one change alone there is no race.
  EXPECT_EQ(run_of(one, 22 + 35)->tuner.ledger().end_reason, "35 updates are left, the clearest change takes 36");
  EXPECT_GT(run_of(one, 22 + 36)->loop.applied, 0);
}

TEST(LiveTuner, WhereABlockIsManyUpdatesAShortRunIsOneOfFewBlocks) {
  const Effects effects = {{"a", {.time_factor = 0.5}}, {"b", {}}};
  TunedRun run({.unit_s = 0.002}, effects), longer({.unit_s = 0.002}, effects);
  run.loop.updates_in_all = 700;  // Some 500 when the loop is known. A block is of 16, behind one that is not measured.
  run.steps(700);
  EXPECT_EQ(run.loop.applied, 0);
  EXPECT_THAT(run.tuner.ledger().end_reason, HasSubstr("updates are left, the clearest change takes 510"));
  longer.loop.updates_in_all = 1000;
  longer.steps(1000);
  EXPECT_GT(longer.loop.applied, 0);
}

TEST(LiveTuner, FrozenItDoesNothing) {
  TunedRun run({}, {{"a", {.time_factor = 0.5}}}, {.frozen = true});
  run.steps(100);
  run.tuner.undo();
  EXPECT_FALSE(run.tuner.watching());
  EXPECT_EQ(run.loop.applied + run.loop.calls_kept, 0);
  EXPECT_TRUE(run.loop.told.empty());
  EXPECT_TRUE(run.tuner.ledger().ledger.trials.empty());
  EXPECT_EQ(run.tuner.ledger().updates, 0);
}

}  // namespace
}  // namespace headrace
