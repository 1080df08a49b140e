#include "insight/tune/live_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Candidate candidate(const std::string& name, const Settings& changes, const std::vector<std::string>& excludes = {}) {
  Candidate value;
  value.name = value.key = name;
  value.changes = changes;
  value.excludes = excludes;
  return value;
}

LiveChanges four() {
  return {{candidate("one thread", {{"threads", "1"}}), candidate("two threads", {{"threads", "2"}}),
           candidate("fused", {{"fused", "true"}}), candidate("foreach", {{"foreach", "true"}}, {"fused"})},
          {}};
}

TEST(LiveChanges, OnlyNamedOnesAreLookedAtInTheirOrder) {
  const LiveChanges changes({candidate("a", {{"a", "1"}}), candidate("b", {{"b", "1"}}), candidate("c", {{"c", "1"}})},
                            {"c", "a"});
  ASSERT_EQ(changes.count(), 2u);
  EXPECT_EQ(changes.candidate(0).name, "a");
  EXPECT_EQ(changes.candidate(1).name, "c");
}

TEST(LiveChanges, OfTheSameKeyOrNamedByTheOtherTheyExcludeEachOther) {
  const LiveChanges changes = four();
  EXPECT_TRUE(changes.exclude(0, 1));
  EXPECT_TRUE(changes.exclude(2, 3));
  EXPECT_TRUE(changes.exclude(3, 2));
  EXPECT_FALSE(changes.exclude(0, 2));
}

TEST(LiveChanges, WhatIsKeptSettlesWhatDoesNothingBesideIt) {
  LiveChanges changes = four();
  EXPECT_THAT(changes.keep(2, "Pays."), ElementsAre(3u));
  EXPECT_EQ(changes.standing(3), Standing::out);
  EXPECT_EQ(changes.trial(3).sentence, "It does nothing beside fused, which is kept.");
  EXPECT_EQ(changes.trial(2).verdict, Verdict::kept);
  EXPECT_EQ(changes.best(), (Settings{{"fused", "true"}}));
  const std::size_t with[] = {0};
  EXPECT_EQ(changes.best_with(with), (Settings{{"fused", "true"}, {"threads", "1"}}));
}

TEST(LiveChanges, WhatDoesNothingBesideALaterOneGivesWayToIt) {
  LiveChanges changes = four();
  changes.keep(0, "Pays.");
  changes.keep(3, "Pays.");
  EXPECT_EQ(changes.standing(2), Standing::gate);  // It is still tried, in the place of what is kept.
  EXPECT_FALSE(changes.why_idle(2));
  const std::size_t fused[] = {2}, two_threads[] = {1};
  EXPECT_EQ(changes.best_with(fused), (Settings{{"fused", "true"}, {"threads", "1"}}));
  EXPECT_EQ(changes.best_with(two_threads), (Settings{{"foreach", "true"}, {"threads", "2"}}));
  for (const NumericPair& pair : changes.numeric_pairs_of(2)) {
    EXPECT_FALSE(pair.reference.contains("foreach") || pair.candidate.contains("foreach"));
  }
  EXPECT_EQ(changes.numeric_pairs_of(2).size(), 1u);
  EXPECT_THAT(changes.keep(2, "Pays."), ElementsAre(3u));
  EXPECT_EQ(changes.best(), (Settings{{"fused", "true"}, {"threads", "1"}}));
  EXPECT_THAT(changes.kept(), ElementsAre(0u, 2u));
  EXPECT_TRUE(changes.trial(3).removed_again);
  EXPECT_EQ(changes.trial(3).verdict, Verdict::refused);
  EXPECT_EQ(changes.trial(3).sentence, "Replaced by fused, beside which it does nothing.");
}

TEST(LiveChanges, ALaterOneOfTheSameKeyTakesItsPlace) {
  LiveChanges changes = four();
  changes.keep(0, "Pays.");
  changes.keep(2, "Pays.");
  EXPECT_THAT(changes.keep(1, "Pays."), ElementsAre(0u));
  EXPECT_EQ(changes.best(), (Settings{{"fused", "true"}, {"threads", "2"}}));
  EXPECT_THAT(changes.kept(), ElementsAre(2u, 1u));
  EXPECT_TRUE(changes.trial(0).removed_again);
  EXPECT_EQ(changes.trial(0).verdict, Verdict::refused);
  EXPECT_THAT(changes.trial(0).sentence, HasSubstr("Replaced"));
}

TEST(LiveChanges, WhatIsTakenOutIsNoLongerPartOfTheBest) {
  LiveChanges changes = four();
  changes.keep(0, "Pays.");
  changes.keep(2, "Pays.");
  EXPECT_EQ(changes.best_without(0), (Settings{{"fused", "true"}}));
  changes.take_out(0, Verdict::refused, Reason::no_gain, "Taken out again.");
  EXPECT_EQ(changes.best(), (Settings{{"fused", "true"}}));
  EXPECT_EQ(changes.number_of(Standing::kept), 1u);
  EXPECT_EQ(changes.trial(0).reason, Reason::no_gain);
}

TEST(LiveChanges, WhatChangesNothingIsIdle) {
  LiveChanges changes({candidate("nothing", {}), candidate("a", {{"a", "1"}}), candidate("a too", {{"a", "1"}})}, {});
  EXPECT_TRUE(changes.why_idle(0));
  EXPECT_FALSE(changes.why_idle(1));
  changes.settle(0, Verdict::refused, Reason::no_gain, *changes.why_idle(0));
  EXPECT_THAT(changes.keep(1, "Pays."), ElementsAre(2u));
  EXPECT_FALSE(changes.first(Standing::gate));
}

LiveChanges of_loading() {
  std::vector<Candidate> candidates = {
      candidate("one worker", {{"data.num_workers", "1"}}), candidate("deeper", {{"data.prefetch_batches", "4"}}),
      candidate("both", {{"data.num_workers", "1"}, {"threads", "1"}}), candidate("fused", {{"fused", "true"}})};
  for (std::size_t i = 0; i < 2; ++i) candidates[i].carries_over = true;
  candidates[0].changes_batches = true;
  return {candidates, {}};
}

TEST(LiveChanges, OfAChangeThatOnlyLoadsNoCallShowsAnything) {
  LiveChanges changes = of_loading();
  EXPECT_TRUE(changes.only_loads(0));
  EXPECT_TRUE(changes.only_loads(1));
  EXPECT_FALSE(changes.only_loads(2));
  EXPECT_FALSE(changes.only_loads(3));
  EXPECT_TRUE(changes.numeric_pairs_of(0).empty());
  EXPECT_EQ(changes.trial(0).numerics.measure, "other draws");
  EXPECT_EQ(changes.trial(1).numerics.measure, "the same batches");
  EXPECT_FALSE(changes.trial(1).numerics.checked);
  EXPECT_EQ(changes.trial(3).numerics.measure, "");
  // Nor beside others, once it is kept.
  const auto before = changes.numeric_pairs_of(3);
  changes.keep(0, "Pays.");
  changes.keep(1, "Pays.");
  EXPECT_EQ(changes.numeric_pairs_of(3), before);
}

TEST(LiveChanges, SettingsCarryOverThatDifferInAKeyOfAChangeThatSaysSo) {
  const LiveChanges changes = of_loading();
  const Settings fused = {{"fused", "true"}}, one = {{"data.num_workers", "1"}}, two = {{"data.num_workers", "2"}};
  EXPECT_FALSE(changes.carry_over({}, fused));
  EXPECT_TRUE(changes.carry_over({}, one));
  EXPECT_TRUE(changes.carry_over(one, fused));
  EXPECT_TRUE(changes.carry_over(one, two));
  EXPECT_FALSE(changes.carry_over(one, {{"data.num_workers", "1"}, {"fused", "true"}}));
}

}  // namespace
}  // namespace headrace
