#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "insight/tune/live_tuned_run.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const LiveMachine kNotQuiet{.noise = 0.6, .correlation = 0};

Effects changes(int count, double time_factor = 1) {
  Effects effects;
  for (int i = 0; i < count; ++i) effects[fmt::format("change {}", i)].time_factor = time_factor;
  return effects;
}

bool is_told(const TunedRun& run, const std::string& name) {
  const auto& told = run.loop.told;
  return std::find(told.begin(), told.end(), "decided: " + name) != told.end();
}

std::size_t number_told(const TunedRun& run, const std::vector<Candidate>& candidates) {
  return static_cast<std::size_t>(std::count_if(candidates.begin(), candidates.end(),
                                                [&](const Candidate& one) { return is_told(run, one.name); }));
}

TEST(LiveNotQuiet, TheMostPromisingChangesAreTriedFirstInTheOrderOfAll) {
  const Effects effects = changes(9);
  std::vector<Candidate> candidates = all_of(effects);
  for (std::size_t i = 0; i < 9; ++i) candidates[i].promise_rank = 9 - static_cast<std::int64_t>(i);
  TunedRun run(kNotQuiet, effects, {}, 1, candidates);
  run.steps(200);
  EXPECT_THAT(run.loop.told.at(0), StartsWith("judged: This machine is not quiet"));
  EXPECT_THAT(run.loop.told.at(0), HasSubstr("Of 9 changes the 6 most promising are tried first."));
  EXPECT_THAT(run.loop.told.at(1), StartsWith("began: 9 changes; "));
  ASSERT_GE(run.loop.replayed.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(run.loop.replayed[i], candidates[3 + i].changes) << i;
  EXPECT_GT(run.units_under("change 8"), 0);
  EXPECT_EQ(run.tuner.ledger().ledger.quietness.candidates_wanted, 9);
  EXPECT_EQ(run.tuner.ledger().ledger.quietness.candidates_held, 6);
  run.tuner.stop("enough");
  for (std::size_t i = 0; i < 2; ++i) {  // Noise decides on one of the six at most in so few pairs.
    const std::string& name = candidates[i].name;
    EXPECT_EQ(run.trial(name).verdict, Verdict::inconclusive) << name;
    EXPECT_EQ(run.trial(name).reason, Reason::not_quiet) << name;
    EXPECT_EQ(run.trial(name).sentence, "Not tried: the machine is not quiet, and more promising changes came first.");
    EXPECT_EQ(run.units_under(name), 0) << name;
    EXPECT_TRUE(is_told(run, name)) << name;
  }
}

TEST(LiveNotQuiet, EachChangeThatIsDecidedLeavesItsPlaceToTheNextMostPromising) {
  const Effects effects = changes(8, 1.6);
  std::vector<Candidate> candidates = all_of(effects);
  for (std::size_t i = 0; i < 8; ++i) candidates[i].promise_rank = i == 6 ? 9 : static_cast<std::int64_t>(i) + 1;
  TunedRun run({.noise = 0.25, .correlation = 0}, effects, {.lost_s = 1000}, 1, candidates);
  for (int i = 0; i < 3000 && run.units_under("change 6") == 0; ++i) {
    run.steps(1);
    ASSERT_LE(run.loop.replayed.size(), 6 + number_told(run, candidates)) << i;
  }
  ASSERT_THAT(run.loop.told.at(0), StartsWith("judged: This machine is not quiet"));
  EXPECT_GT(run.units_under("change 6"), 0);
  ASSERT_EQ(run.loop.replayed.size(), 8u);  // Each of the eight once: none is kept.
  EXPECT_EQ(run.loop.replayed[6], candidates[7].changes);
  EXPECT_EQ(run.loop.replayed[7], candidates[6].changes);
}

TEST(LiveNotQuiet, AllAreDecidedWhereTheRunIsLongEnough) {
  Effects effects = changes(8, 1.6);
  effects["change 7"].time_factor = 1 / 1.8;
  TunedRun run({.noise = 0.25, .correlation = 0}, effects, {.lost_s = 1000});
  run.loop.updates_in_all = 20'000;
  ASSERT_TRUE(run.until_over(15'000));
  ASSERT_THAT(run.loop.told.at(0), StartsWith("judged: This machine is not quiet"));
  EXPECT_EQ(run.trial("change 7").verdict, Verdict::kept) << run.trial("change 7").sentence;
  for (int i = 0; i < 8; ++i) EXPECT_NE(run.trial(fmt::format("change {}", i)).reason, Reason::not_quiet) << i;
}

TEST(LiveNotQuiet, WhatTheRestOfTheRunCannotDecideIsNotBegun) {
  const Effects effects = changes(8, 1.6);
  TunedRun run({.noise = 0.25, .correlation = 0}, effects, {.lost_s = 1000});
  for (int i = 0; i < 3000 && number_told(run, all_of(effects)) == 0; ++i) {
    // At first enough for a race and a proof, and never again.
    run.loop.updates_in_all = run.loop.updates + (run.loop.updates < 40 ? 100 : 30);
    run.steps(1);
  }
  EXPECT_GT(number_told(run, all_of(effects)), 0u);
  run.steps(10);
  EXPECT_EQ(run.loop.replayed.size(), 6u);
  run.tuner.stop("enough");
  EXPECT_EQ(run.trial("change 7").reason, Reason::not_quiet);
}

TEST(LiveNotQuiet, OfTheSamePromiseTheFirstAreTriedAndWhereAllAreNothingIsSaidOfThat) {
  TunedRun run(kNotQuiet, changes(9)), few(kNotQuiet, {{"a", {}}, {"b", {}}});
  run.steps(60);
  few.steps(60);
  EXPECT_EQ(std::count(run.loop.replayed.begin(), run.loop.replayed.end(), Settings{{"change 5", "true"}}), 1);
  EXPECT_EQ(std::count(run.loop.replayed.begin(), run.loop.replayed.end(), Settings{{"change 6", "true"}}), 0);
  EXPECT_THAT(few.loop.told.at(0), StartsWith("judged: This machine is not quiet"));
  EXPECT_THAT(few.loop.told.at(0), Not(HasSubstr("promising")));
}

}  // namespace
}  // namespace headrace
