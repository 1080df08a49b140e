#include "insight/tune/live_drops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr double kGainMin = 0.02;

Candidate candidate(const std::string& name) {
  Candidate value;
  value.name = value.key = name;
  value.changes = {{name, "true"}};
  return value;
}

// Three changes in a race whose pairs show of each what is planted, and no noise.
class ThreeInTurns {
 public:
  ThreeInTurns() {
    for (const std::size_t change : {kNull, kFast, kOther}) race.enter(change);
  }
  // All of them take turns: what each of two shows is its own effect and that of the other, with the sign of their
  // being on the same side or not. Here the null change is on the other side of the fast one each time.
  void add_pairs_in_which_the_null_change_is_opposed(std::int64_t count, double fast) {
    for (std::int64_t i = 0; i < count; ++i) {
      race.add({.on = {}, .turns = {{kNull, true}, {kFast, false}}}, fast);
    }
  }
  // Pairs of one alone, which show just that.
  void add_pairs_of(std::size_t change, std::int64_t count, double log_ratio) {
    for (std::int64_t i = 0; i < count; ++i) race.add({.on = {}, .turns = {{change, false}}}, log_ratio);
  }
  void prove(std::size_t change, double log_gain) {
    const double gain = std::expm1(log_gain);
    changes.trial(change).gain = Interval{gain, gain, gain};
  }

  static constexpr std::size_t kNull = 0, kFast = 1, kOther = 2;
  LiveChanges changes{{candidate("denormals as 0"), candidate("arena"), candidate("threads")}, {}};
  LiveRace race{3, kGainMin, 1, [](std::size_t, std::size_t) { return false; }};
  LiveDrops drops{changes, race, kGainMin};
};

TEST(LiveDrops, OfWhatOthersMayHaveMadeTheBetsAreToldAndNoFigure) {
  ThreeInTurns all;
  all.add_pairs_in_which_the_null_change_is_opposed(6, 0.54);
  ASSERT_EQ(all.race.outcome(ThreeInTurns::kNull), Outcome::slower);  // By 42 %, as far as these pairs show.
  all.drops.add(ThreeInTurns::kNull);
  const LiveDrops::Told so_far = all.drops.told(ThreeInTurns::kNull, true);
  EXPECT_EQ(so_far.sentence, "Gains less than 2.0 %: 6 pairs in turns with others; to be looked at again.");
  EXPECT_EQ(so_far.reason, Reason::no_gain);
  all.prove(ThreeInTurns::kFast, 0.54);
  const LiveDrops::Told at_end = all.drops.told(ThreeInTurns::kNull, false);
  EXPECT_EQ(
      at_end.sentence,
      "Gains less than 2.0 %: 6 pairs in turns with others, among them arena, whose effect was not known by then; "
      "not looked at again.");
  EXPECT_EQ(at_end.reason, Reason::no_gain);
  EXPECT_FALSE(all.drops.tells_gain(ThreeInTurns::kNull, false));
  EXPECT_EQ(all.drops.disturber(ThreeInTurns::kNull), ThreeInTurns::kFast);
}

TEST(LiveDrops, WhatNoOtherCanHaveMadeIsTheChangesOwn) {
  ThreeInTurns all;
  all.add_pairs_in_which_the_null_change_is_opposed(6, 0.54);
  all.prove(ThreeInTurns::kFast, 0.1);  // Less than half of what the pairs leave for the null change.
  all.drops.add(ThreeInTurns::kNull);
  EXPECT_FALSE(all.drops.tells_gain(ThreeInTurns::kNull, true));  // It is looked at again all the same.
  EXPECT_TRUE(all.drops.tells_gain(ThreeInTurns::kNull, false));
  const LiveDrops::Told told = all.drops.told(ThreeInTurns::kNull, false);
  EXPECT_THAT(told.sentence, StartsWith("Slower: -"));
  EXPECT_THAT(told.sentence, HasSubstr("6 pairs), in turns with others."));
  EXPECT_EQ(told.reason, Reason::slower);
  EXPECT_EQ(all.drops.disturber(ThreeInTurns::kNull), std::nullopt);
}

TEST(LiveDrops, WhoTookNoTurnsInItsPairsHasNotDisturbedIt) {
  ThreeInTurns all;
  all.add_pairs_of(ThreeInTurns::kNull, 6, -0.5);
  all.prove(ThreeInTurns::kFast, 0.9);
  all.drops.add(ThreeInTurns::kNull);
  EXPECT_THAT(all.drops.told(ThreeInTurns::kNull, false).sentence, StartsWith("Slower: "));
}

TEST(LiveDrops, OfTwoThatMayHaveDisturbedItTheProvedOneIsNamed) {
  ThreeInTurns all;
  const LiveRace::Pair pair{.on = {}, .turns = {{0, true}, {1, false}, {2, true}}};
  for (int i = 0; i < 6; ++i) all.race.add(pair, 0.6);
  all.drops.add(ThreeInTurns::kNull);
  EXPECT_EQ(all.drops.disturber(ThreeInTurns::kNull), ThreeInTurns::kFast);  // As large as the other's, and before it.
  all.prove(ThreeInTurns::kOther, -0.4);
  EXPECT_EQ(all.drops.disturber(ThreeInTurns::kNull), ThreeInTurns::kOther);
}

TEST(LiveDrops, FewPairsAreLookedAtOnceMoreAndManyAreNot) {
  ThreeInTurns all;
  all.add_pairs_of(ThreeInTurns::kNull, 11, -0.5);
  all.add_pairs_of(ThreeInTurns::kOther, 12, -0.5);
  all.drops.add(ThreeInTurns::kNull);
  all.drops.add(ThreeInTurns::kOther);
  EXPECT_THAT(all.drops.waiting(), ElementsAre(ThreeInTurns::kNull));
  EXPECT_THAT(all.drops.dropped(), ElementsAre(ThreeInTurns::kNull, ThreeInTurns::kOther));
  EXPECT_THAT(all.drops.told(ThreeInTurns::kOther, true).sentence, StartsWith("Slower: "));

  all.drops.look_again(ThreeInTurns::kNull);
  EXPECT_TRUE(all.drops.is_looked_at_again(ThreeInTurns::kNull));
  EXPECT_THAT(all.drops.waiting(), IsEmpty());
  EXPECT_THAT(all.drops.dropped(), ElementsAre(ThreeInTurns::kOther));
  EXPECT_EQ(all.drops.pairs(ThreeInTurns::kNull), nullptr);
  all.race.clear(ThreeInTurns::kNull);
  all.add_pairs_of(ThreeInTurns::kNull, 6, -0.5);
  all.drops.add(ThreeInTurns::kNull);
  EXPECT_THAT(all.drops.waiting(), IsEmpty());
  ASSERT_NE(all.drops.pairs(ThreeInTurns::kNull), nullptr);
  EXPECT_EQ(all.drops.pairs(ThreeInTurns::kNull)->pairs(), 6);
  EXPECT_THAT(all.drops.told(ThreeInTurns::kNull, true).sentence, StartsWith("Slower: "));
}

TEST(LiveDrops, WithoutASecondLookTheFirstHoldsAndIsSaidToBeTheOnlyOne) {
  ThreeInTurns all;
  all.add_pairs_in_which_the_null_change_is_opposed(6, 0.54);
  all.drops.add(ThreeInTurns::kNull);
  all.drops.look_again(ThreeInTurns::kNull);
  all.race.clear(ThreeInTurns::kNull);
  all.drops.take_back(ThreeInTurns::kNull);
  EXPECT_EQ(all.drops.pairs(ThreeInTurns::kNull)->pairs(), 6);
  EXPECT_THAT(all.drops.told(ThreeInTurns::kNull, false).sentence, HasSubstr("; not looked at again."));
  all.drops.forget(ThreeInTurns::kNull);
  EXPECT_THAT(all.drops.dropped(), IsEmpty());
}

}  // namespace
}  // namespace headrace
