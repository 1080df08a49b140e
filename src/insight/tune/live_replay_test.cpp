#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/live_replay.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "insight/tune/live_tuned_run.h"

namespace headrace {
namespace {

using testing::HasSubstr;

const Settings kFast = {{"fast", "true"}}, kSlow = {{"slow", "true"}};

FakeLiveLoop plain_loop() {
  return FakeLiveLoop({}, {{"fast", {}}, {"slow", {}}, {"broken", {.apply_throws = true}}}, 1);
}

LiveLedger ledger_of(std::vector<LiveTurn> turns, Settings best = {}) {
  LiveLedger live;
  live.turns = std::move(turns);
  live.ledger.best = std::move(best);
  return live;
}

// What was in force in each of so many updates of a run in which nothing else happens.
std::vector<Settings> replayed(const LiveLedger& ledger, FakeLiveLoop& loop, std::int64_t updates) {
  LiveReplay replay(loop, ledger, "ledger.json");
  replay.begin();
  std::vector<Settings> in_force;
  for (std::int64_t update = 1; update <= updates; ++update) {
    in_force.push_back(loop.settings);
    replay.after_update(update);
  }
  EXPECT_TRUE(replay.is_over());
  return in_force;
}

bool has_turn(const LiveLedger& ledger, const std::string& why) {
  return std::any_of(ledger.turns.begin(), ledger.turns.end(),
                     [&](const LiveTurn& turn) { return turn.why.find(why) != std::string::npos; });
}

TEST(LiveReplay, EveryUpdateRunsUnderTheSettingsThatItHadInTheFirstRun) {
  const Effects effects = {
      {"fast", {.time_factor = 1 / 1.6}}, {"slow", {.time_factor = 1.25}}, {"some", {.time_factor = 0.9}}};
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    // Without noise the fast one is kept, whatever is drawn.
    TunedRun first({.noise = 0, .evaluation_every = 40, .evaluation_s = 0.2}, effects, {.recheck_s = 30}, seed);
    first.steps(200);
    first.tuner.failed(ErrorCode::unsupported, "it ended by itself", {"some"});
    first.steps(2300);
    first.tuner.stop("stopped");
    const LiveLedger ledger = parse_live_ledger(json_text(first.tuner.ledger()), "ledger.json");
    ASSERT_GT(ledger.turns.size(), 20u) << seed;
    EXPECT_TRUE(has_turn(ledger, "check of what is kept")) << seed;  // Turns as the others.
    FakeLiveLoop loop(first.loop.machine, effects, 7);
    EXPECT_EQ(replayed(ledger, loop, 2500), first.loop.in_force_of_unit) << seed;
    EXPECT_EQ(loop.settings, first.loop.settings) << seed;
    EXPECT_TRUE(loop.replayed.empty() && loop.calls_kept == 0) << seed;
  }
}

// As hooks do it: a setting that ended by itself is told behind its update and before its unit.
TEST(LiveReplay, AFailureBehindAnUpdateHoldsFromTheNextOneOn) {
  TunedRun first({.noise = 0}, {{"fast", {.time_factor = 1 / 1.6}}});
  first.until_on_trial();
  const std::int64_t updates = first.loop.updates;
  std::vector<Settings> in_force = first.loop.in_force_of_unit;
  in_force.push_back(first.loop.settings);  // The update whose unit is not told yet.
  first.tuner.note_update(updates + 1);
  first.tuner.failed(ErrorCode::unsupported, "it ended by itself", {"fast"});
  in_force.push_back(first.loop.settings);
  ASSERT_EQ(in_force[in_force.size() - 2], kFast);
  ASSERT_EQ(in_force.back(), Settings());
  FakeLiveLoop loop = plain_loop();
  EXPECT_EQ(replayed(first.tuner.ledger(), loop, updates + 2), in_force);
}

TEST(LiveReplay, TurnsBetweenTheSameTwoUpdatesAreAppliedInTheirOrder) {
  FakeLiveLoop loop = plain_loop();
  const auto in_force = replayed(ledger_of({{3, kFast, "a"}, {3, {}, "b"}, {3, kSlow, "c"}, {5, {}, "d"}}), loop, 5);
  EXPECT_EQ(in_force, (std::vector<Settings>{{}, {}, kSlow, kSlow, {}}));
  EXPECT_EQ(loop.applied, 4);
}

TEST(LiveReplay, ALedgerWithoutTurnsIsOverAtOnce) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({}), "ledger.json");
  replay.begin();
  EXPECT_TRUE(replay.is_over());
  replay.after_update(1);
  replay.stop();
  EXPECT_EQ(loop.applied, 0);
}

TEST(LiveReplay, WhatUndoSwitchedIsLeftToTheScriptsOwnUndo) {
  TunedRun first({.noise = 0}, {{"fast", {.time_factor = 1 / 1.6}}});
  ASSERT_TRUE(first.until_over(600));
  first.tuner.undo();
  const LiveLedger ledger = first.tuner.ledger();
  ASSERT_EQ(ledger.turns.back().why, "undone");
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger, "ledger.json");
  for (std::int64_t update = 1; update <= first.loop.updates + 10; ++update) replay.after_update(update);
  EXPECT_TRUE(replay.is_over());
  EXPECT_EQ(loop.settings, kFast);
  EXPECT_EQ(replay.turns(), ledger.turns.size() - 1);
  replay.undo();
  EXPECT_EQ(loop.settings, Settings());
}

TEST(LiveReplay, StopEndsItWithWhatTheLedgerHasAsKept) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({{2, kSlow, "a"}, {4, {}, "b"}, {6, kFast, "c"}}, kFast), "ledger.json");
  for (std::int64_t update = 1; update <= 2; ++update) replay.after_update(update);
  EXPECT_EQ(loop.settings, kSlow);
  replay.stop();
  EXPECT_EQ(loop.settings, kFast);
  EXPECT_TRUE(replay.is_over());
  EXPECT_EQ(replay.turns_applied(), 1u);
  EXPECT_EQ(replay.turns(), 3u);
  for (std::int64_t update = 3; update <= 8; ++update) replay.after_update(update);
  EXPECT_EQ(loop.settings, kFast);
}

TEST(LiveReplay, StopBehindTheLastTurnChangesNothing) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({{2, kSlow, "a"}}, kFast), "ledger.json");
  replay.after_update(1);
  replay.stop();
  EXPECT_EQ(loop.settings, kSlow);
}

TEST(LiveReplay, ARunThatIsResumedBeginsWithWhatHeldThere) {
  const LiveLedger ledger = ledger_of({{2, kSlow, "a"}, {4, kFast, "b"}, {9, {}, "c"}});
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger, "ledger.json");
  replay.begin(6);
  EXPECT_EQ(loop.settings, kFast);
  EXPECT_EQ(loop.applied, 1);
  for (std::int64_t update = 7; update <= 8; ++update) replay.after_update(update);
  EXPECT_EQ(loop.settings, Settings());
  EXPECT_TRUE(replay.is_over());
}

TEST(LiveReplay, ATurnThatCannotBeAppliedIsNamedByLedgerUpdateAndSettings) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({{2, kFast, "a"}, {4, {{"broken", "true"}}, "pair 1, race, first block"}}),
                    "runs/x/ledger.json");
  for (std::int64_t update = 1; update <= 2; ++update) replay.after_update(update);
  EXPECT_EQ(
      error_of(ErrorCode::unsupported, [&] { replay.after_update(3); }),
      "tune: runs/x/ledger.json: what holds from update 4 on (pair 1, race, first block; broken = true) cannot be "
      "applied: fake: broken cannot be applied");
  EXPECT_EQ(loop.settings, kFast);
  EXPECT_EQ(replay.in_force(), kFast);
  EXPECT_EQ(replay.turns_applied(), 1u);
}

TEST(LiveReplay, WhatTheLoopThrowsThatIsNoErrorPassesAndTheTurnIsStillToCome) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({{2, kFast, "a"}}), "ledger.json");
  loop.interrupts_next_apply = true;
  EXPECT_THROW(replay.after_update(1), Interrupt);
  EXPECT_FALSE(replay.is_over());
  replay.after_update(1);
  EXPECT_EQ(loop.settings, kFast);
}

TEST(LiveReplay, ALoopThatCountsItsUpdatesOtherwiseIsRefused) {
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger_of({{4, kFast, "a"}}), "runs/x/ledger.json");
  replay.after_update(1);
  const std::string said = error_of(ErrorCode::invalid_argument, [&] { replay.after_update(6); });
  EXPECT_THAT(said,
              HasSubstr("runs/x/ledger.json: turn 1 (fast = true) holds from update 4 on, and 6 updates were made"));
  EXPECT_EQ(loop.settings, Settings());
}

TEST(LiveReplay, ASettingThatEndsByItselfIsAnErrorUnlessItDidSoInTheFirstRun) {
  const LiveLedger ledger = ledger_of({{2, kFast, "a"}, {4, {}, "a change failed"}, {6, kSlow, "b"}, {9, kFast, "c"}});
  FakeLiveLoop loop = plain_loop();
  LiveReplay replay(loop, ledger, "ledger.json");
  for (std::int64_t update = 1; update <= 2; ++update) replay.after_update(update);
  replay.end_setting("fast", "too many shapes");
  replay.after_update(3);  // As the first run's did.
  for (std::int64_t update = 4; update <= 6; ++update) replay.after_update(update);
  replay.end_setting("slow", "it went away");
  EXPECT_EQ(error_of(ErrorCode::unsupported, [&] { replay.after_update(7); }),
            "tune: ledger.json: update 7: slow stays in force in the first run, and has ended by itself here: it went "
            "away");
}

TEST(LiveReplay, TellsEachSettingsThatItWillApplyOnce) {
  FakeLiveLoop loop = plain_loop();
  const LiveReplay replay(loop, ledger_of({{2, kFast, "a"}, {3, {}, "b"}, {4, kFast, "c"}, {5, {}, "undone"}}),
                          "ledger.json");
  EXPECT_EQ(replay.settings(), (std::vector<Settings>{{}, kFast}));
}

}  // namespace
}  // namespace headrace
