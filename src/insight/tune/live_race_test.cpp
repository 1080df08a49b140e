#include "insight/tune/live_race.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;

bool never(std::size_t /*one*/, std::size_t /*other*/) {
  return false;
}

bool is_on(const std::vector<std::size_t>& on, std::size_t change) {
  return std::find(on.begin(), on.end(), change) != on.end();
}

LiveRace race_of(std::size_t count, std::uint64_t seed = 1, LiveRace::Excludes excludes = never) {
  LiveRace race(count, 0.02, seed, std::move(excludes));
  for (std::size_t change = 0; change < count; ++change) race.enter(change);
  return race;
}

TEST(LiveRace, EachChangeIsOnInOneOfTheTwoBlocks) {
  LiveRace race = race_of(5);
  for (std::int64_t number = 1; number <= 100; ++number) {
    const auto pair = race.draw(number);
    ASSERT_EQ(pair.turns.size(), 5u);
    for (const auto& turn : pair.turns) {
      EXPECT_EQ(is_on(pair.on[0], turn.change), turn.leads);
      EXPECT_EQ(is_on(pair.on[1], turn.change), !turn.leads);
    }
  }
}

// Which change leads is a fair coin of its own: half of the time, whatever the others do and whatever was drawn before.
TEST(LiveRace, TheOrderOfEachChangeIsAFairIndependentCoin) {
  constexpr int kPairs = 4000;
  LiveRace race = race_of(4, 7);
  std::map<std::pair<std::size_t, std::size_t>, int> same;  // Of two changes, in how many pairs both lead or follow.
  std::vector<int> leads(4, 0), as_before(4, 0);
  std::vector<bool> before(4, false);
  for (std::int64_t number = 1; number <= kPairs; ++number) {
    const auto pair = race.draw(number);
    std::vector<bool> now(4, false);
    for (const auto& turn : pair.turns) now[turn.change] = turn.leads;
    for (std::size_t i = 0; i < 4; ++i) {
      leads[i] += now[i];
      as_before[i] += now[i] == before[i];
      for (std::size_t j = i + 1; j < 4; ++j) same[{i, j}] += now[i] == now[j];
    }
    before = now;
  }
  constexpr int kHalf = kPairs / 2;
  const double reach = 4 * std::sqrt(kPairs / 4.0);  // Four standard deviations.
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(leads[i], kHalf, reach) << i;
    EXPECT_NEAR(as_before[i], kHalf, reach) << i;
    for (std::size_t j = i + 1; j < 4; ++j) EXPECT_NEAR((same[{i, j}]), kHalf, reach) << i << " " << j;
  }
}

TEST(LiveRace, TheSameSeedDrawsTheSameTurns) {
  const auto turns_of = [](std::uint64_t seed) {
    LiveRace race = race_of(6, seed);
    std::vector<std::size_t> all;
    for (std::int64_t number = 1; number <= 50; ++number) {
      const auto pair = race.draw(number);
      all.insert(all.end(), pair.on[0].begin(), pair.on[0].end());
    }
    return all;
  };
  EXPECT_EQ(turns_of(3), turns_of(3));
  EXPECT_NE(turns_of(3), turns_of(4));
}

TEST(LiveRace, AFinishedPairTellsEachChangeItsOwnSide) {
  LiveRace race = race_of(3);
  const std::vector<double> gains = {0.5, 0, -0.2};  // Of log time.
  std::mt19937_64 random(5);
  std::normal_distribution<double> noise(0, 0.05);
  for (std::int64_t number = 1; number <= 120; ++number) {
    const auto pair = race.draw(number);
    double log_ratio = noise(random);
    for (const auto change : pair.on[0]) log_ratio -= gains[change];
    for (const auto change : pair.on[1]) log_ratio += gains[change];
    race.add(pair, log_ratio);
  }
  for (std::size_t change = 0; change < 3; ++change) {
    EXPECT_EQ(race.pairs(change), 120);
    EXPECT_NEAR(std::log1p(race.record(change).gain()->median), gains[change], 0.12) << change;
  }
  EXPECT_EQ(race.outcome(0), Outcome::pays);
  EXPECT_NE(race.outcome(2), Outcome::pays);
}

double log_ratio_of(const LiveRace::Pair& pair, const std::vector<double>& gains) {
  double log_ratio = 0;
  for (const auto change : pair.on[0]) log_ratio -= gains[change];
  for (const auto change : pair.on[1]) log_ratio += gains[change];
  return log_ratio;
}

TEST(LiveRace, WhatIsKnownOfTheOthersIsNoNoise) {
  LiveRace race = race_of(3);
  const std::vector<double> gains = {0.47, 0.08, -0.22};  // Of log time.
  std::mt19937_64 random(5);
  std::normal_distribution<double> noise(0, 0.03);
  std::int64_t number = 0;
  while (race.outcome(1) == Outcome::open && number < 200) {
    const auto pair = race.draw(++number);
    race.add(pair, log_ratio_of(pair, gains) + noise(random));
  }
  EXPECT_EQ(race.outcome(1), Outcome::pays);
  EXPECT_LE(number, 30);
}

TEST(LiveRace, AChangeThatGainsClearlyIsToBeProvedAfterSixPairs) {
  LiveRace race = race_of(1);
  for (std::int64_t number = 1; number <= 6; ++number) {
    EXPECT_EQ(race.outcome(0), Outcome::open) << number;
    const auto pair = race.draw(number);
    race.add(pair, log_ratio_of(pair, {0.5}));
  }
  EXPECT_EQ(race.outcome(0), Outcome::pays);
}

// Which of the two gains nobody can tell: both wait.
TEST(LiveRace, OfTwoThatWereOnTheSameSideInAllPairsNeitherLeads) {
  int met = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    LiveRace race = race_of(2, seed);
    bool same = true;
    for (std::int64_t number = 1; number <= kPairsToProve; ++number) {
      const auto pair = race.draw(number);
      race.add(pair, log_ratio_of(pair, {0.5, 0}));
      same = same && pair.on[0].size() != 1;
    }
    EXPECT_NE(race.outcome(1), Outcome::pays) << seed;
    EXPECT_TRUE(!same || race.outcome(0) == Outcome::open) << seed;
    met += same;
  }
  EXPECT_GE(met, 1);
}

// Whatever is taken off for the others, and where noise comes in bursts that depend on the past: a change worth exactly
// gain_min reaches each wealth no more often than Ville's inequality says.
TEST(LiveRace, BetsOnWhatIsLeftOfAPairStayFair) {
  constexpr int kRaces = 1500;
  const std::vector<double> gains = {std::log1p(0.02), 0.47, -0.22, 0.14};
  std::mt19937_64 random(11);
  std::normal_distribution<double> noise(0, 0.08);
  std::uniform_real_distribution<double> uniform(0, 1);
  int proved = 0, kept = 0, dropped = 0;
  for (std::uint64_t seed = 1; seed <= kRaces; ++seed) {
    LiveRace race = race_of(4, seed);
    double most_for = 0, most_against = 0, burst = 0;
    for (std::int64_t number = 1; number <= 40; ++number) {
      const auto pair = race.draw(number);
      burst = uniform(random) < 0.2 ? 1.0 : -0.7 * burst;
      race.add(pair, log_ratio_of(pair, gains) + noise(random) + burst);
      most_for = std::max(most_for, race.record(0).bets().wealth_for());
      most_against = std::max(most_against, race.record(0).bets().wealth_against());
    }
    proved += most_for >= kWealthToProve;
    kept += most_for >= kWealthToKeep;
    dropped += most_against >= kWealthToDrop;
  }
  EXPECT_LE(proved, kRaces / kWealthToProve);
  EXPECT_LE(kept, kRaces / kWealthToKeep);
  EXPECT_LE(dropped, kRaces / kWealthToDrop);
}

TEST(LiveRace, ChangesThatExcludeEachOtherTakeTurnsAtBeingLeftOut) {
  const auto excludes = [](std::size_t one, std::size_t other) { return one + other == 1; };  // 0 and 1.
  LiveRace race = race_of(3, 9, excludes);
  int first = 0, second = 0;
  for (std::int64_t number = 1; number <= 400; ++number) {
    const auto pair = race.draw(number);
    ASSERT_EQ(pair.turns.size(), 2u);
    for (const auto& on : pair.on) EXPECT_FALSE(is_on(on, 0) && is_on(on, 1));
    for (const auto& turn : pair.turns) {
      first += turn.change == 0;
      second += turn.change == 1;
    }
  }
  EXPECT_EQ(first + second, 400);
  EXPECT_NEAR(first, 200, 60);
}

TEST(LiveRace, ANewChangeTakesItsTurnInItsFirstPair) {
  const auto all = [](std::size_t one, std::size_t other) { return one != other; };
  LiveRace race(3, 0.02, 1, all);
  for (std::size_t change = 0; change < 3; ++change) {
    race.enter(change);
    const auto pair = race.draw(static_cast<std::int64_t>(change) + 1);
    ASSERT_EQ(pair.turns.size(), 1u);
    EXPECT_EQ(pair.turns[0].change, change);
  }
}

TEST(LiveRace, AnExpensiveChangeTakesEveryNthTurnAndStaysAsItIsBetween) {
  LiveRace race = race_of(3);
  race.take_turns_every(1, 8);
  int turns = 0;
  bool on = false;
  for (std::int64_t number = 1; number <= 160; ++number) {
    const auto pair = race.draw(number);
    const auto turn =
        std::find_if(pair.turns.begin(), pair.turns.end(), [](const auto& one) { return one.change == 1; });
    if (turn == pair.turns.end()) {
      EXPECT_EQ(is_on(pair.on[0], 1), on) << number;
      EXPECT_EQ(is_on(pair.on[1], 1), on) << number;
    } else {
      ++turns;
      on = !turn->leads;
    }
    race.add(pair, 0.01);
  }
  EXPECT_EQ(turns, 20);
  EXPECT_EQ(race.pairs(1), 20);
  EXPECT_EQ(race.pairs(0), 160);
}

TEST(LiveRace, ExpensiveChangesTakeTheirTurnsInTheSamePairsWheneverTheyEntered) {
  LiveRace race(3, 0.02, 1, never);
  race.enter(0);
  std::vector<std::int64_t> first, second;
  for (std::int64_t number = 1; number <= 64; ++number) {
    if (number == 3) race.enter(1);
    if (number == 6) race.enter(2);
    for (const std::size_t change : {1u, 2u}) race.take_turns_every(change, 8);
    EXPECT_EQ(race.is_turn_of_every(8), number % 8 == 0);
    for (const auto& turn : race.draw(number).turns) {
      if (turn.change == 1) first.push_back(number);
      if (turn.change == 2) second.push_back(number);
    }
  }
  EXPECT_THAT(first, ElementsAre(8, 16, 24, 32, 40, 48, 56, 64));
  EXPECT_EQ(first, second);
}

TEST(LiveRace, WhatIsTurnedOffIsOffUntilItsNextTurn) {
  LiveRace race = race_of(2);
  std::int64_t number = 1;
  while (!is_on(race.draw(number).on[1], 1)) ++number;
  race.take_turns_every(1, 1000);
  race.turn_off(1);
  for (const auto& on : race.draw(number + 1).on) EXPECT_FALSE(is_on(on, 1));
}

TEST(LiveRace, WhenAllAreTurnedOffNothingIsHeldOn) {
  LiveRace race = race_of(2);
  std::int64_t number = 1;
  while (!is_on(race.draw(number).on[1], 1)) ++number;
  race.take_turns_every(1, 1000);
  EXPECT_TRUE(is_on(race.draw(number + 1).on[0], 1));
  race.turn_all_off();
  const auto pair = race.draw(number + 2);
  EXPECT_FALSE(is_on(pair.on[0], 1));
  EXPECT_FALSE(is_on(pair.on[1], 1));
}

TEST(LiveRace, WhatWasMeasuredOnOtherSettingsCountsNoMoreButCanBeRead) {
  LiveRace race = race_of(1);
  for (std::int64_t number = 1; number <= 20; ++number) {
    const auto pair = race.draw(number);
    race.add(pair, pair.turns[0].leads ? -0.5 : 0.5);
  }
  EXPECT_EQ(race.outcome(0), Outcome::pays);
  race.forget();
  EXPECT_EQ(race.outcome(0), Outcome::open);
  EXPECT_EQ(race.pairs(0), 0);
  EXPECT_EQ(race.record(0).pairs(), 20);
  race.add(race.draw(21), 0.1);
  EXPECT_EQ(race.pairs(0), 1);
  EXPECT_EQ(race.record(0).pairs(), 1);
}

TEST(LiveRace, WhoLeavesTakesNoTurnsAndBeginsAnewWhenItEntersAgain) {
  LiveRace race = race_of(2);
  race.add(race.draw(1), 0.1);
  race.leave(0);
  EXPECT_THAT(race.changes(), ElementsAre(1));
  EXPECT_EQ(race.draw(2).turns.size(), 1u);
  race.enter(0);
  EXPECT_EQ(race.pairs(0), 0);
  EXPECT_EQ(race.draw(3).turns.size(), 2u);
}

TEST(LiveRace, KnowsWhichOthersTookTurnsInThePairsOfARecord) {
  LiveRace race = race_of(3);
  race.leave(2);
  race.add(race.draw(1), 0.1);
  EXPECT_THAT(race.beside(0), ElementsAre(1));
  EXPECT_THAT(race.beside(1), ElementsAre(0));
  race.leave(1);
  race.add(race.draw(2), 0.1);
  EXPECT_THAT(race.beside(0), ElementsAre(1));  // In its first pair.
  race.forget();
  race.add(race.draw(3), 0.1);
  EXPECT_TRUE(race.beside(0).empty());
  race.clear(1);
  EXPECT_EQ(race.record(1).pairs(), 0);
  EXPECT_TRUE(race.beside(1).empty());
}

TEST(PairRecord, TheGainIsOfTheNewestPairsAndTheBetsOfAll) {
  PairRecord record(0.02);
  EXPECT_FALSE(record.gain());
  EXPECT_FALSE(record.middle());
  for (int i = 0; i < 300; ++i) record.add(0.5);
  for (std::size_t i = 0; i < PairRecord::kNewest; ++i) record.add(0.01);
  EXPECT_EQ(record.pairs(), 300 + static_cast<std::int64_t>(PairRecord::kNewest));
  EXPECT_NEAR(record.gain()->median, std::expm1(0.01), 1e-9);
  EXPECT_EQ(record.bets().outcome(), Outcome::pays);
}

}  // namespace
}  // namespace headrace
