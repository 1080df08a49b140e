// Changes of what a loader does ahead of a loop: how they take turns beside others, and whether what is found of them
// is what they are worth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "insight/tune/live_tuned_run.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr double kLoad_s = 0.1;  // From one batch to the next, of two workers.

LiveMachine machine_of(double unit_s, std::int64_t queue) {
  return {.unit_s = unit_s, .noise = 0.02, .load_s = kLoad_s, .queue = queue, .workers = 2};
}

Candidate of_loading(const std::string& name) {
  Candidate value = candidate(name, NumericClass::bit_equal);
  value.carries_over = true;
  return value;
}

Candidate of_other_draws(const std::string& name) {
  Candidate value = of_loading(name);
  value.numerics = NumericClass::rounding;
  value.changes_batches = true;
  return value;
}

// Without noise, of changes that are worth what is wanted, which is nothing: none is ever decided.
TunedRun undecided_with_loading() {
  LiveMachine machine = machine_of(0.3, 4);
  machine.noise = 0;
  return TunedRun(machine, {{"a", {}}, {"b", {}}, {"data.loads", {}}}, {.gain_min = 0}, 1,
                  {candidate("a"), candidate("b"), of_loading("data.loads")});
}

// Of each stretch of units with the key in force, and of each between two of them: how many units. Without the last
// one, which may go on.
std::vector<std::int64_t> stretches(const FakeLiveLoop& loop, const std::string& key) {
  std::vector<std::int64_t> lengths;
  bool before = false;
  for (const Settings& settings : loop.in_force_of_unit) {
    const bool now = settings.contains(key);
    if (now != before) lengths.push_back(0);
    if (!lengths.empty()) ++lengths.back();
    before = now;
  }
  if (!lengths.empty()) lengths.pop_back();
  return lengths;
}

struct Planted {
  const char* key;
  LiveEffect effect;
};

// By the rate at which batches come and are used up once nothing of other settings is left.
double worth_of(const Planted& planted, double unit_s) {
  const double written_s = std::max(unit_s, kLoad_s);
  return written_s / std::max(unit_s * planted.effect.time_factor, kLoad_s * planted.effect.load_factor) - 1;
}

// What is found of it alone.
Trial found_of(const Planted& planted, double unit_s, std::int64_t queue) {
  const std::string key = planted.key;
  const bool loads = key.starts_with("data.");
  // Six pairs of blocks that wash out and fill the longest queue lose 80 s of half the loading.
  TunedRun run(machine_of(unit_s, queue), {{key, planted.effect}}, {.lost_s = 1000}, 1,
               {loads ? of_loading(key) : candidate(key)});
  const auto is_decided = [&] {
    return std::find(run.loop.told.begin(), run.loop.told.end(), "decided: " + key) != run.loop.told.end();
  };
  for (int i = 0; i < 4000 && !is_decided(); ++i) run.loop.step(run.tuner);
  return run.trial(key);
}

// A loop that waits 0, 50 and 90 % of a step for data, with queues of 2 to 32 batches.
TEST(LiveLoading, WhateverIsDecidedHasTheRightSign) {
  constexpr double kOffAt0 = 0.03;  // What of a true 0 may be found.
  const std::array planted = {Planted{"computes", {}},
                              Planted{"computes", {.time_factor = 0.5}},
                              Planted{"computes", {.time_factor = 1.5}},
                              Planted{"data.loads", {}},
                              Planted{"data.loads", {.load_factor = 0.7}},
                              Planted{"data.loads", {.load_factor = 2}}};
  int kept = 0, refused = 0;
  for (const std::int64_t queue : {2, 4, 8, 16, 32}) {
    for (const double unit_s : {1.25 * kLoad_s, 0.5 * kLoad_s, 0.1 * kLoad_s}) {
      for (const Planted& one : planted) {
        const Trial trial = found_of(one, unit_s, queue);
        const double worth = worth_of(one, unit_s);
        SCOPED_TRACE(one.key + (" worth " + std::to_string(worth)) + ", unit " + std::to_string(unit_s) + ", queue " +
                     std::to_string(queue) + ": " + trial.sentence);
        const bool is_kept = trial.verdict == Verdict::kept, is_refused = trial.verdict == Verdict::refused;
        kept += is_kept;
        refused += is_refused;
        EXPECT_TRUE(is_kept || is_refused || worth == 0);
        EXPECT_TRUE(!is_kept || worth > 0);
        EXPECT_TRUE(!is_refused || worth < (trial.reason == Reason::slower ? kOffAt0 : 0.02 + kOffAt0));
        // How much it is: a true 0 is found as 0 whatever the queue, the rest with a queue of 4.
        if (!(is_kept || is_refused) || !trial.gain || (worth != 0 && queue != 4)) continue;
        EXPECT_NEAR(trial.gain->median, worth, std::max(kOffAt0, 0.3 * std::abs(worth)));
      }
    }
  }
  EXPECT_EQ(kept, 5 * 3);     // Of each queue: 0.5 of the first loop's computing, 0.7 of the others' loading.
  EXPECT_GE(refused, 5 * 4);  // And 1.5 of the first loop's computing, 2 of every one's loading.
}

TEST(LiveLoading, TakesTurnsWithAllOthersWhereTheLoopWaitsAnyway) {
  const Effects effects = {
      {"computes", {}}, {"data.fast", {.load_factor = 0.7}}, {"data.same", {}}, {"data.slow", {.load_factor = 2}}};
  const std::vector<Candidate> candidates = {candidate("computes"), of_loading("data.fast"), of_loading("data.same"),
                                             of_loading("data.slow")};
  TunedRun run(machine_of(0.05, 4), effects, {.lost_s = 100}, 1, candidates);
  ASSERT_TRUE(run.until_over(8000));
  EXPECT_EQ(run.loop.settings, (Settings{{"data.fast", "true"}}));
  EXPECT_EQ(run.trial("data.slow").verdict, Verdict::refused) << run.trial("data.slow").sentence;
  EXPECT_NEAR(run.trial("data.fast").gain->median, 1 / 0.7 - 1, 0.05);
  EXPECT_NEAR(run.tuner.ledger().ledger.speedup.median, 1 / 0.7, 0.05);
  const auto& in_force = run.loop.in_force_of_unit;
  const auto both = [](const Settings& one) { return one.contains("computes") && one.contains("data.fast"); };
  EXPECT_TRUE(std::any_of(in_force.begin(), in_force.end(), both));
}

// Units under what is kept count for what the loop as written is expected to take, by how much faster they are known to
// be. While a pair is measured that must move nothing.
TEST(LiveLoading, WhatAllTogetherGainIsFoundWhateverIsExpected) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    TunedRun run(machine_of(0.05, 4), {{"data.fast", {.load_factor = 0.7}}, {"data.slow", {.load_factor = 2}}},
                 {.lost_s = 100}, seed, {of_loading("data.fast"), of_loading("data.slow")});
    ASSERT_TRUE(run.until_over(8000)) << seed;
    EXPECT_NEAR(run.tuner.ledger().ledger.speedup.median, 1 / 0.7, 0.05) << seed;
  }
}

TEST(LiveLoading, TakesFewTurnsWhereOthersHaveShortBlocks) {
  TunedRun run = undecided_with_loading();
  run.steps(800);
  const auto lengths = stretches(run.loop, "data.loads");
  ASSERT_GE(lengths.size(), 4u);
  for (std::size_t i = 0; i < lengths.size(); i += 2) EXPECT_GE(lengths[i], 12) << i;  // 4 washed out, 8 measured.
  EXPECT_LT(run.units_under("data.loads"), 800 / 6);
  EXPECT_GT(run.tuner.ledger().turns.size(), 10 * lengths.size());
}

TEST(LiveLoading, WashesOutTheQueueOfTheSettingsInForce) {
  TunedRun run(machine_of(0.05, 4), {{"data.ahead", {.queue_factor = 2}}}, {}, 1, {of_loading("data.ahead")});
  run.steps(600);
  const auto lengths = stretches(run.loop, "data.ahead");
  ASSERT_GE(lengths.size(), 4u);
  // 8 batches lie ahead under it, and when it has just been switched off: washed out twice, as in each proof, and
  // blocks of two.
  for (const std::int64_t length : lengths) EXPECT_GE(length, 32);
}

TEST(LiveLoading, AnUnknownQueueIsWashedOutToo) {
  std::vector<Candidate> candidates = {candidate("a")};
  candidates[0].carries_over = true;
  TunedRun run({.noise = 0.02}, {{"a", {.aftermath = 1.5}}}, {}, 1, candidates);
  run.steps(1200);
  EXPECT_NE(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
  EXPECT_THAT(run.trial("a").sentence, Not(HasSubstr("Not judged")));
  const auto lengths = stretches(run.loop, "a");
  ASSERT_FALSE(lengths.empty());
  EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 32);  // Taken for 8.
}

TEST(LiveLoading, WhatABlockThatEndedEarlyHasLoadedIsWashedOutBehindIt) {
  TunedRun run = undecided_with_loading();
  for (int i = 0; i < 400 && !run.loop.settings.contains("data.loads"); ++i) run.steps(1);
  ASSERT_TRUE(run.loop.settings.contains("data.loads"));
  const std::int64_t from = run.loop.updates + 1;  // The first update without it.
  run.tuner.failed(ErrorCode::unsupported, "it went away", {"data.loads"});
  run.steps(40);
  const LiveLedger ledger = run.tuner.ledger();
  std::vector<std::int64_t> behind;  // The next block begins at from + 1, whether that switches anything or not.
  for (const LiveTurn& turn : ledger.turns) {
    if (turn.update > from + 1) behind.push_back(turn.update);
  }
  ASSERT_FALSE(behind.empty());
  EXPECT_GE(behind.front(), from + 5);  // Others have two units.
}

TEST(LiveLoading, WhereTheLoopWaitsForDataBlocksAreAsLongAsTwoQueues) {
  TunedRun waits({.load_s = 0.2, .queue = 4}, {{"a", {.time_factor = 0.5}}});
  waits.steps(200);
  const auto& turns = waits.tuner.ledger().turns;
  ASSERT_GE(turns.size(), 3u);
  for (std::size_t i = 1; i < turns.size(); ++i) EXPECT_GE(turns[i].update - turns[i - 1].update, 8) << i;
  TunedRun computes({.load_s = 0.02, .queue = 4}, {{"a", {}}});
  computes.steps(200);
  const auto& short_turns = computes.tuner.ledger().turns;
  std::size_t short_gaps = 0;
  for (std::size_t i = 1; i < short_turns.size(); ++i) {
    short_gaps += short_turns[i].update - short_turns[i - 1].update < 8 ? 1 : 0;
  }
  EXPECT_GE(short_turns.size(), 3u);
  EXPECT_GE(2 * short_gaps, short_turns.size() - 1);
}

TEST(LiveLoading, WhatOutlastsTheQueueIsNotJudged) {
  TunedRun run(machine_of(0.3, 2), {{"data.loads", {.aftermath = 1.4, .aftermath_units = 8}}}, {}, 1,
               {of_loading("data.loads")});
  run.loop.updates_in_all = 4000;
  ASSERT_TRUE(run.until_over(3500));
  EXPECT_EQ(run.trial("data.loads").verdict, Verdict::inconclusive) << run.trial("data.loads").sentence;
  EXPECT_EQ(run.trial("data.loads").reason, Reason::carries_over);
  EXPECT_THAT(run.trial("data.loads").sentence, StartsWith("Not judged while the run goes on: "));
  EXPECT_TRUE(run.loop.settings.empty());
}

TEST(LiveLoading, PassesNoGateAndIsTriedWithoutAKeptCall) {
  TunedRun run(machine_of(0.05, 4), {{"data.loads", {}}, {"data.other", {}}}, {.allow = NumericClass::bit_equal}, 1,
               {of_loading("data.loads"), of_other_draws("data.other")});
  run.loop.keeps_calls = false;
  run.steps(200);
  EXPECT_EQ(run.loop.calls_kept, 0);
  EXPECT_GT(run.units_under("data.loads"), 0);
  EXPECT_EQ(run.trial("data.loads").numerics.measure, "the same batches");
  EXPECT_EQ(run.units_under("data.other"), 0);
  EXPECT_EQ(run.trial("data.other").reason, Reason::not_allowed);
  EXPECT_EQ(run.trial("data.other").sentence,
            "Not tried, as only bit_equal is allowed and it is rounding (other draws); no kept call shows what it "
            "gains.");
}

TEST(LiveLoading, OtherDrawsAreCalledSoAndNoReplayTakesThem) {
  const Effects effects = {{"computes", {.time_factor = 1 / 1.02}}, {"data.other", {.load_factor = 0.6}}};
  TunedRun run(machine_of(0.05, 4), effects, {}, 1, {candidate("computes"), of_other_draws("data.other")});
  run.loop.updates_in_all = 20000;
  for (int i = 0; i < 100 && run.trial("data.other").verdict != Verdict::kept; ++i) run.steps(50);
  EXPECT_EQ(run.trial("data.other").verdict, Verdict::kept);
  EXPECT_THAT(run.trial("data.other").sentence, HasSubstr("; its batches are other draws"));
  EXPECT_EQ(run.trial("data.other").numerics.measure, "other draws");
  run.steps(200);
  EXPECT_EQ(run.loop.replayed, (std::vector<Settings>{Settings{{"computes", "true"}}}));
}

// One pair of the loading change would take more than is left, and the others go on without it. Without noise what is
// lost is known: 0.4 s by four forwards in the gate; 0.3 s by the last 5 of the 14 units in a first block under the
// change, as the queue holds out for 9; 0.24 s by the 4 batches that are loaded slowly when it ends. So the first pair
// fits into 1 s, and leaves less than a second one would take.
TEST(LiveLoading, WaitsUntilTheOthersAreDoneWhereItWouldTakeWhatTheyMayLose) {
  LiveMachine machine = machine_of(0.1, 4);
  machine.noise = 0;
  machine.load_s = 0.08;
  machine.workers = 1;
  const Effects effects = {{"a", {}}, {"b", {}}, {"c", {}}, {"data.slow", {.load_factor = 2}}};
  TunedRun run(machine, effects, {.gain_min = 0, .lost_s = 1, .lost_share = 0}, 1,
               {candidate("a"), candidate("b"), candidate("c"), of_loading("data.slow")});
  run.loop.updates_in_all = 10000;
  run.steps(900);
  EXPECT_FALSE(run.tuner.ledger().ended) << run.tuner.ledger().end_reason;
  EXPECT_GT(run.units_under("data.slow"), 0);
  EXPECT_EQ(run.units_under("data.slow", 500), 0);
  EXPECT_GT(run.units_under("a", 700) + run.units_under("b", 700) + run.units_under("c", 700), 0);
}

}  // namespace
}  // namespace headrace
