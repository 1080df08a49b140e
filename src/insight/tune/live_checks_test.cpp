#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "insight/tune/live_tuned_run.h"

namespace headrace {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

TEST(LiveChecks, AllowsBitEqualAloneAndTimesTheOthersOnKeptCalls) {
  Effects effects = {
      {"bits", {.time_factor = 1 / 1.3}}, {"liar", {.time_factor = 1 / 1.3}}, {"rounds", {.time_factor = 1 / 1.5}}};
  effects["bits"].distance = {.bit_equal = true};
  const std::vector<Candidate> candidates = {candidate("bits", NumericClass::bit_equal),
                                             candidate("liar", NumericClass::bit_equal), candidate("rounds")};
  TunedRun run({}, effects, {.allow = NumericClass::bit_equal}, 1, candidates);
  run.loop.updates_in_all = 3000;
  ASSERT_TRUE(run.until_over(2000));
  EXPECT_EQ(run.trial("bits").verdict, Verdict::kept) << run.trial("bits").sentence;
  EXPECT_EQ(run.trial("liar").verdict, Verdict::refused);
  EXPECT_EQ(run.trial("liar").reason, Reason::numerics);
  EXPECT_EQ(run.units_under("liar"), 0);
  EXPECT_EQ(run.units_under("rounds"), 0);
  EXPECT_EQ(run.trial("rounds").reason, Reason::not_allowed);
  EXPECT_THAT(run.trial("rounds").sentence, HasSubstr("it is rounding"));
  const LiveLedger::Estimate timed = run.estimate("rounds");
  EXPECT_TRUE(timed.timed_only);
  EXPECT_EQ(timed.pairs, 4);
  EXPECT_NEAR(timed.gain->median, 0.5, 0.01);
  EXPECT_FALSE(run.trial("rounds").gain);
}

// bf16 is forbidden; the others stay open, as without noise they gain as much as is wanted.
TEST(LiveChecks, WhatIsNotAllowedIsTimedWithinTheSearchOnceATenthOfTheRunIsOver) {
  const Effects effects = {{"a", {}}, {"b", {}}, {"bf16", {.time_factor = 1 / 1.6}}};
  const std::vector<Candidate> candidates = {candidate("a"), candidate("b"),
                                             candidate("bf16", NumericClass::reduced_precision)};
  TunedRun run({.noise = 0}, effects, {.gain_min = 0}, 1, candidates);
  run.loop.updates_in_all = 2000;
  run.steps(180);
  EXPECT_EQ(run.trial("bf16").reason, Reason::none);
  run.steps(60);
  EXPECT_EQ(run.trial("bf16").verdict, Verdict::refused);
  EXPECT_EQ(run.trial("bf16").reason, Reason::not_allowed);
  EXPECT_THAT(run.trial("bf16").sentence, HasSubstr("forward and backward of a kept call: +60.0 %"));
  EXPECT_NEAR(run.estimate("bf16").gain.value().median, 0.6, 0.01);
  EXPECT_EQ(run.units_under("bf16"), 0);
  EXPECT_FALSE(run.tuner.ledger().ended);
  EXPECT_GT(run.estimate("a").pairs, 20);
}

TEST(LiveChecks, WhatIsNotAllowedIsTimedAsSoonAsSomethingIsKept) {
  const Effects effects = {
      {"a", {.time_factor = 1 / 1.6}}, {"b", {.time_factor = 1 / 1.02}}, {"bf16", {.time_factor = 1 / 1.6}}};
  const std::vector<Candidate> candidates = {candidate("a"), candidate("b"),
                                             candidate("bf16", NumericClass::reduced_precision)};
  TunedRun run({.noise = 0}, effects, {}, 1, candidates);
  run.loop.updates_in_all = 100'000;
  for (int i = 0; i < 400 && run.trial("a").verdict != Verdict::kept; ++i) {
    run.steps(1);
    ASSERT_EQ(run.estimate("bf16").pairs, 0) << i;
  }
  ASSERT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
  run.steps(6);  // A call each.
  EXPECT_EQ(run.trial("bf16").reason, Reason::not_allowed) << run.trial("bf16").sentence;
  EXPECT_NEAR(run.estimate("bf16").gain.value().median, 0.6, 0.01);
}

TEST(LiveChecks, WhatIsNotAllowedIsNotTimedWithWhatTheOthersMayLose) {
  const Effects effects = {{"a", {}}, {"b", {}}, {"bf16", {.time_factor = 1 / 1.6}}};
  const std::vector<Candidate> candidates = {candidate("a"), candidate("b"),
                                             candidate("bf16", NumericClass::reduced_precision)};
  // The gate takes 0.3 s of it, and a pair of replays 0.4 s.
  TunedRun run({.noise = 0}, effects, {.gain_min = 0, .lost_s = 0.8, .lost_share = 0}, 1, candidates);
  run.loop.updates_in_all = 2000;
  run.steps(600);
  EXPECT_EQ(run.estimate("bf16").pairs, 0);
  EXPECT_GT(run.estimate("a").pairs, 80);
}

TEST(LiveChecks, WhatIsNotAllowedAndTakesLongToPrepareIsTimedLastAndWithinWhatMayBeLost) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.5}}, {"rounds", {.time_factor = 1 / 1.5, .prepare_s = 5}}};
  std::vector<Candidate> candidates = {candidate("a", NumericClass::bit_equal), candidate("rounds")};
  candidates[1].prepare_s = 5;
  const auto timed_pairs = [&](double lost_s) {
    TunedRun run({}, effects, {.allow = NumericClass::bit_equal, .lost_s = lost_s, .lost_share = 0}, 1, candidates);
    run.loop.effects["a"].distance = {.bit_equal = true};
    run.loop.updates_in_all = 300;  // What "a" gains in it does not pay for 5 s.
    run.until_over(299);
    EXPECT_LE(run.tuner.ledger().lost_most_s, lost_s);
    return run.estimate("rounds").pairs;
  };
  EXPECT_EQ(timed_pairs(2), 0);
  EXPECT_EQ(timed_pairs(30), 4);
}

TEST(LiveChecks, ALoopThatDoesNotRepeatItselfIsNamedWhereBitsDiffer) {
  TunedRun run({}, {{"a", {}}}, {.allow = NumericClass::bit_equal}, 1, {candidate("a", NumericClass::bit_equal)});
  run.loop.repeats_itself = false;
  run.steps(40);
  EXPECT_EQ(run.trial("a").reason, Reason::numerics);
  EXPECT_THAT(run.trial("a").sentence, HasSubstr("does not repeat its own bits either"));
}

TEST(LiveChecks, TheGateComesInOrderAndCostsOneReplayAChangeAndTwoOfTheReference) {
  Effects effects;
  std::vector<Candidate> candidates;
  for (const char* name : {"d", "b", "bf16", "bad bf16", "a"}) {
    effects[name] = {};
    candidates.push_back(candidate(name));
  }
  candidates[2].numerics = candidates[3].numerics = NumericClass::reduced_precision;
  effects["bf16"].distance = {.relative_l2 = 0.2, .cosine = 0.97};
  effects["bad bf16"].distance = {.relative_l2 = 0.3, .cosine = 0.97};  // Two calls differ by 0.5.
  TunedRun run({}, effects, {.allow = NumericClass::reduced_precision}, 1, candidates);
  run.steps(40);
  ASSERT_EQ(run.loop.replayed.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(run.loop.replayed[i], candidates[i].changes) << i;
  EXPECT_LE(run.loop.forwards_of_reference, 2);
  EXPECT_EQ(run.trial("bad bf16").reason, Reason::numerics);
  EXPECT_EQ(run.trial("bf16").verdict, Verdict::inconclusive);
  EXPECT_TRUE(run.trial("bf16").numerics.passed);
}

TEST(LiveChecks, WhatFailsInTheReplayIsNeverInForce) {
  Effects effects = {{"broken", {}}, {"fine", {.time_factor = 1 / 1.5}}, {"large", {}}, {"nan", {}}};
  effects["broken"].replay_failure = ReplayFailure{ErrorCode::internal, "no kernel for this type"};
  effects["large"].replay_failure = ReplayFailure{ErrorCode::out_of_memory, "needs 3 GiB, 1 GiB is free"};
  effects["nan"].distance.relative_l2 = std::numeric_limits<double>::quiet_NaN();
  effects["nan"].distance.finite = false;
  TunedRun run({}, effects);
  run.steps(300);
  EXPECT_EQ(run.trial("broken").verdict, Verdict::failed);
  EXPECT_EQ(run.trial("broken").sentence, "Failed: no kernel for this type.");
  EXPECT_EQ(run.trial("large").verdict, Verdict::refused);
  EXPECT_EQ(run.trial("large").reason, Reason::memory);
  EXPECT_EQ(run.trial("nan").reason, Reason::numerics);
  EXPECT_EQ(run.trial("fine").verdict, Verdict::kept) << run.trial("fine").sentence;
  for (const char* name : {"broken", "large", "nan"}) EXPECT_EQ(run.units_under(name), 0) << name;
}

TEST(LiveChecks, WithoutAKeptCallNothingIsTriedAndThatIsSaid) {
  TunedRun run({}, {{"a", {}}, {"b", {}}});
  run.loop.keeps_calls = false;
  ASSERT_TRUE(run.until_over(100));
  EXPECT_EQ(run.loop.applied, 0);
  EXPECT_EQ(run.trial("a").verdict, Verdict::inconclusive);
  EXPECT_THAT(run.trial("b").sentence, HasSubstr("no call of the model could be kept"));
}

TEST(LiveChecks, ACallThatCannotBeMadeAgainCountsAgainstNoChange) {
  TunedRun run({}, {{"a", {.time_factor = 1 / 1.5}}});
  run.loop.failing_calls = 5;
  run.steps(300);
  EXPECT_EQ(run.loop.calls_kept, 6);
  EXPECT_EQ(run.trial("a").verdict, Verdict::kept) << run.trial("a").sentence;
}

TEST(LiveChecks, WhereNoCallCanBeMadeAgainTheWaitingChangesSayWhy) {
  const std::vector<Candidate> candidates = {candidate("a"), candidate("bf16", NumericClass::reduced_precision)};
  TunedRun run({}, {{"a", {}}, {"bf16", {}}}, {}, 1, candidates);
  run.loop.failing_calls = 1000;
  ASSERT_TRUE(run.until_over(100));
  EXPECT_EQ(run.loop.calls_kept, 16);
  EXPECT_EQ(run.loop.applied, 0);
  for (const char* name : {"a", "bf16"}) {
    EXPECT_EQ(run.trial(name).verdict, Verdict::inconclusive) << name;
    EXPECT_EQ(run.trial(name).sentence, "Not tried: the kept call holds an iterator.") << name;
  }
  EXPECT_EQ(run.trial("bf16").reason, Reason::not_allowed);
}

TEST(LiveChecks, ASettingThatIsUnsupportedInTheReplayFailsAlone) {
  Effects effects = {{"a broken", {}}, {"b", {.time_factor = 1 / 1.5}}, {"c broken", {}}};
  effects["a broken"].replay_failure = ReplayFailure{ErrorCode::unsupported, "its parameters share memory"};
  effects["c broken"].replay_failure = effects["a broken"].replay_failure;
  TunedRun run({}, effects);
  run.steps(300);
  for (const char* name : {"a broken", "c broken"}) {
    EXPECT_EQ(run.trial(name).verdict, Verdict::failed) << name;
    EXPECT_EQ(run.trial(name).sentence, "Failed: its parameters share memory.") << name;
  }
  EXPECT_EQ(run.trial("b").verdict, Verdict::kept) << run.trial("b").sentence;
  EXPECT_EQ(run.loop.calls_kept, 1);
}

TEST(LiveChecks, AWinnerIsCheckedTogetherWithWhatIsKept) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.5}}, {"b", {.time_factor = 1 / 1.4}}};
  const Settings both = {{"a", "true"}, {"b", "true"}};
  TunedRun run({}, effects);
  run.loop.updates_in_all = 4000;
  run.loop.distances[both] = {.relative_l2 = 0.3};  // Either alone passes.
  ASSERT_TRUE(run.until_over(3000));
  const Trial a = run.trial("a"), b = run.trial("b");
  const Trial &kept = a.verdict == Verdict::kept ? a : b, &refused = a.verdict == Verdict::kept ? b : a;
  EXPECT_EQ(kept.verdict, Verdict::kept) << kept.sentence;
  EXPECT_EQ(refused.reason, Reason::numerics);
  EXPECT_THAT(refused.sentence, StartsWith("Beside what is kept it computes something else: gradients, relative L2: "));
  EXPECT_FALSE(refused.numerics.passed);
  EXPECT_EQ(run.loop.settings, kept.changes);
  EXPECT_EQ(std::count(run.loop.replayed.begin(), run.loop.replayed.end(), both), 1);
}

TEST(LiveChecks, BesideAKeptChangeOfALooserClassTheWholeIsCheckedByThatClass) {
  const Effects effects = {{"bf16", {.time_factor = 1 / 1.5}}, {"fused", {.time_factor = 1 / 1.4}}};
  const Settings both = {{"bf16", "true"}, {"fused", "true"}};
  const std::vector<Candidate> candidates = {candidate("bf16", NumericClass::reduced_precision), candidate("fused")};
  TunedRun run({}, effects, {.allow = NumericClass::reduced_precision}, 1, candidates);
  run.loop.updates_in_all = 4000;
  run.loop.distances[both] = {.relative_l2 = 0.2, .cosine = 0.98};  // Two calls differ by 0.5.
  ASSERT_TRUE(run.until_over(3000));
  EXPECT_EQ(run.loop.settings, both) << run.trial("bf16").sentence << run.trial("fused").sentence;
  EXPECT_EQ(std::count(run.loop.replayed.begin(), run.loop.replayed.end(), both), 1);
  EXPECT_EQ(run.trial("fused").numerics.numeric_class, NumericClass::rounding);
}

TEST(LiveChecks, WhatTakesLongToPrepareComesLastAloneAndSaysWhenThatIsPaidBack) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.5}},
                           {"b", {.time_factor = 1.3}},
                           {"compiled", {.time_factor = 1 / 1.4, .prepare_s = 5}}};
  std::vector<Candidate> candidates = {candidate("a"), candidate("compiled"), candidate("b")};
  candidates[1].prepare_s = 4;
  TunedRun run({}, effects, {}, 1, candidates);
  run.loop.updates_in_all = 6000;
  ASSERT_TRUE(run.until_over(5000));
  EXPECT_EQ(run.trial("compiled").verdict, Verdict::kept) << run.trial("compiled").sentence;
  EXPECT_THAT(run.trial("compiled").sentence, HasSubstr(" s to prepare; at +"));
  EXPECT_THAT(run.trial("compiled").sentence, HasSubstr("paid back after"));
  const Settings prepared = {{"a", "true"}, {"compiled", "true"}};
  for (const Settings& settings : run.loop.in_force_of_unit) {
    EXPECT_TRUE(!settings.contains("compiled") || settings == prepared);
  }
  std::vector<Settings> replayed = run.loop.replayed;
  std::erase_if(replayed, [](const Settings& settings) { return !settings.contains("compiled"); });
  EXPECT_EQ(replayed, (std::vector<Settings>{prepared}));
  const auto is_told = [](const std::string& line) { return line.starts_with("preparing: "); };
  EXPECT_EQ(std::count_if(run.loop.told.begin(), run.loop.told.end(), is_told), 1);
  EXPECT_THAT(run.loop.told, Contains(StartsWith("preparing: compiled: 4 s to prepare; at +30 % paid back after ")));
}

TEST(LiveChecks, WhereTheSecondsAreFromIsToldUntilTheyAreMeasuredAndThenWhatTheyAre) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.5}}, {"compiled", {.time_factor = 1 / 1.4, .prepare_s = 5}}};
  std::vector<Candidate> candidates = {candidate("a"), candidate("compiled")};
  candidates[1].prepare_s = 4;
  candidates[1].prepare_note = "as 3 compilations here took";
  TunedRun run({}, effects, {}, 1, candidates), refused({}, effects, {}, 1, candidates);
  refused.loop.effects.at("compiled").distance = {.relative_l2 = 0.5, .output_difference = 0.5};
  for (TunedRun* one : {&run, &refused}) {
    one->loop.updates_in_all = 6000;
    ASSERT_TRUE(one->until_over(5000));
    EXPECT_THAT(one->loop.told, Contains(StartsWith("preparing: compiled: 4 s to prepare, as 3 compilations here "
                                                    "took; at +30 % paid back after ")));
    ASSERT_EQ(one->loop.told_prepared.size(), 1u);  // And nothing of `a`, which takes nothing.
    EXPECT_EQ(one->loop.told_prepared[0].first, "compiled");
    EXPECT_NEAR(one->loop.told_prepared[0].second, 5, 0.5);
  }
  EXPECT_EQ(run.trial("compiled").verdict, Verdict::kept) << run.trial("compiled").sentence;
  EXPECT_THAT(run.trial("compiled").sentence, HasSubstr(" s to prepare; at +"));
  EXPECT_EQ(refused.trial("compiled").reason, Reason::numerics);
}

TEST(LiveChecks, WhatCouldNotBePreparedIsNoMeasureOfWhatThatTakes) {
  Effects effects = {{"compiled", {.prepare_s = 5}}};
  effects["compiled"].replay_failure = ReplayFailure{ErrorCode::internal, "no such operator"};
  std::vector<Candidate> candidates = {candidate("compiled")};
  candidates[0].prepare_s = 4;
  TunedRun run({}, effects, {}, 1, candidates);
  run.loop.updates_in_all = 6000;
  ASSERT_TRUE(run.until_over(5000));
  EXPECT_EQ(run.trial("compiled").verdict, Verdict::failed) << run.trial("compiled").sentence;
  EXPECT_TRUE(run.loop.told_prepared.empty());
}

TEST(LiveChecks, WhatTheRestOfTheRunCannotPayBackIsNotPrepared) {
  const Effects effects = {{"compiled", {.time_factor = 1 / 1.4, .prepare_s = 40}}};
  std::vector<Candidate> candidates = {candidate("compiled")};
  candidates[0].prepare_s = 40;
  TunedRun run({.noise = 0}, effects, {}, 1, candidates), unknown({.noise = 0}, effects, {}, 1, candidates);
  run.loop.updates_in_all = 1022;
  ASSERT_TRUE(run.until_over(100));
  ASSERT_TRUE(unknown.until_over(100));
  EXPECT_EQ(run.loop.calls_kept + unknown.loop.calls_kept, 0);
  EXPECT_EQ(run.trial("compiled").verdict, Verdict::inconclusive);
  EXPECT_EQ(run.trial("compiled").reason, Reason::budget);
  EXPECT_EQ(run.trial("compiled").sentence,
            "Not tried: 40 s to prepare; at +30 % paid back after 173 s; 100 s remain.");
  EXPECT_THAT(unknown.trial("compiled").sentence, HasSubstr("how long the run goes on is not known"));
}

TEST(LiveChecks, WhatCannotBePaidBackTakesNoPlaceFromOthersWhereTheMachineIsNotQuiet) {
  Effects effects = {{"compiled", {.prepare_s = 40}}};
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) effects[name] = {};
  std::vector<Candidate> candidates = all_of(effects);
  for (Candidate& one : candidates) {
    one.prepare_s = one.name == "compiled" ? 40 : 0;
    one.promise_rank = one.name == "compiled" ? 1 : 2;
  }
  TunedRun run({.noise = 0.6, .correlation = 0}, effects, {}, 1, candidates);
  run.loop.updates_in_all = 522;  // 50 s, and 173 s are needed.
  run.steps(60);
  EXPECT_EQ(run.trial("compiled").reason, Reason::budget) << run.trial("compiled").sentence;
  for (const Candidate& one : candidates) EXPECT_NE(run.trial(one.name).reason, Reason::not_quiet) << one.name;
  EXPECT_THAT(run.loop.told.at(0), StartsWith("judged: This machine is not quiet"));
}

TEST(LiveChecks, WhatHasToBeMadeAnewTakesNoTurnsWithOthers) {
  std::vector<Candidate> candidates = {candidate("a"), candidate("b"), candidate("rebuilt")};
  candidates[2].switches = Switches::rebuild;
  const Effects effects = {{"a", {.time_factor = 1.3}}, {"b", {.time_factor = 1.3}}, {"rebuilt", {}}};
  TunedRun run({}, effects, {}, 1, candidates);
  run.steps(600);
  EXPECT_GT(run.units_under("a"), 0);
  EXPECT_GT(run.units_under("rebuilt"), 0);
  for (const Settings& settings : run.loop.in_force_of_unit) {
    EXPECT_TRUE(!settings.contains("rebuilt") || settings.size() == 1);
  }
}

}  // namespace
}  // namespace headrace
