#include "insight/tune/live_switch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "insight/tune/live_blocks.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Applies anything in 5 ms, unless it is to throw.
class FakeLoop : public LiveLoop {
 public:
  void apply(const Settings& wanted) override {
    now_s += 0.005;
    if (wanted.contains("refused")) throw Error(ErrorCode::unsupported, "refused: not here");
    if (wanted.contains("cancelled")) throw Error(ErrorCode::cancelled, "stopped");
    if (wanted.contains("broken")) throw std::runtime_error("broken");
    settings = wanted;
  }
  Replay replay(const Settings& /*reference*/, const Settings& /*candidate*/, ReplayUse /*use*/) override { return {}; }
  std::optional<double> distance_between_calls() override { return std::nullopt; }
  std::optional<std::int64_t> updates_left() override { return std::nullopt; }
  std::int64_t queued_units() override { return queue; }
  std::int64_t units_ahead() override { return ahead; }
  bool agree(bool yes) override {
    if (agree_throws) throw std::runtime_error("lost the other ranks");
    return yes && others_agree;
  }

  Settings settings;
  double now_s = 0;
  std::int64_t queue = 0, ahead = 0;
  bool others_agree = true, agree_throws = false;
};

struct Switch {
  FakeLoop loop;
  LiveSwitch at{loop, 3, [this] { return loop.now_s; }};
};

TEST(LiveSwitch, RemembersWhatHeldFromWhichUpdateOn) {
  Switch one;
  EXPECT_FALSE(one.at.to({{"a", "1"}}, {0}, 5, "pair 1, race, first block"));
  EXPECT_FALSE(one.at.to({{"a", "1"}}, {0}, 6, "the same"));
  EXPECT_FALSE(one.at.to({}, {}, 7, "what is kept"));
  ASSERT_EQ(one.at.turns().size(), 2u);
  EXPECT_EQ(one.at.turns()[0].update, 5);
  EXPECT_EQ(one.at.turns()[0].settings, (Settings{{"a", "1"}}));
  EXPECT_EQ(one.at.turns()[1].why, "what is kept");
  EXPECT_TRUE(one.at.was_on(0));
  EXPECT_FALSE(one.at.was_on(1));
  EXPECT_TRUE(one.at.were_in_force({{"a", "1"}}));
  EXPECT_FALSE(one.at.were_in_force({{"b", "1"}}));
  EXPECT_THAT(one.at.on(), IsEmpty());
}

TEST(LiveSwitch, ARefusalLeavesWhatHeld) {
  Switch one;
  one.at.to({{"a", "1"}}, {0}, 5, "");
  const auto refusal = one.at.to({{"refused", "1"}}, {1}, 6, "");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code, ErrorCode::unsupported);
  EXPECT_EQ(refusal->message, "refused: not here");
  EXPECT_EQ(one.at.in_force(), (Settings{{"a", "1"}}));
  EXPECT_THAT(one.at.on(), ElementsAre(0u));
  EXPECT_FALSE(one.at.was_on(1));
  EXPECT_EQ(one.at.turns().size(), 1u);
}

TEST(LiveSwitch, EverythingElseThatIsThrownPassesAndLeavesWhatHeld) {
  Switch one;
  one.at.to({{"a", "1"}}, {0}, 5, "");
  EXPECT_THROW(one.at.to({{"broken", "1"}}, {1}, 6, ""), std::runtime_error);
  EXPECT_THROW(one.at.to({{"cancelled", "1"}}, {1}, 6, ""), Error);
  EXPECT_EQ(one.at.in_force(), one.loop.settings);
  EXPECT_THAT(one.at.on(), ElementsAre(0u));
  one.loop.agree_throws = true;
  EXPECT_THROW(one.at.to({{"b", "1"}}, {1}, 6, ""), std::runtime_error);
  EXPECT_EQ(one.at.in_force(), one.loop.settings);  // The switch itself was made.
  EXPECT_THAT(one.at.on(), ElementsAre(1u));
}

TEST(LiveSwitch, WhatAnotherRankRefusesIsTakenBack) {
  Switch one;
  one.loop.others_agree = false;
  EXPECT_TRUE(one.at.to({{"a", "1"}}, {0}, 5, ""));
  EXPECT_THAT(one.loop.settings, IsEmpty());
  EXPECT_THAT(one.at.in_force(), IsEmpty());
  EXPECT_THAT(one.at.on(), IsEmpty());
}

TEST(LiveSwitch, KnowsWhatTheCheapestSwitchOfEachChangeTook) {
  Switch one;
  EXPECT_FALSE(one.at.switch_s(0));
  one.at.to({{"a", "1"}, {"b", "1"}}, {0, 1}, 1, "");
  EXPECT_NEAR(one.at.switch_s(0).value(), 0.005, 1e-9);
  EXPECT_NEAR(one.at.take_seconds(), 0.005, 1e-9);
  EXPECT_EQ(one.at.take_seconds(), 0);
  EXPECT_FALSE(one.at.switch_s(2));
}

TEST(LiveSwitch, CountsUnitsSinceTheLastSwitch) {
  Switch one;
  one.at.count_unit();
  one.at.to({{"a", "1"}}, {0}, 2, "");
  EXPECT_EQ(one.at.units(), 0);
  one.at.count_unit();
  one.at.to({{"a", "1"}}, {0}, 3, "");
  EXPECT_EQ(one.at.units(), 1);
}

TEST(LiveSwitch, EndsBeforeItHoldsMoreTurnsThanAreRead) {
  Switch one;
  std::int64_t update = 0;
  while (!one.at.is_full()) one.at.to({{"a", std::to_string(++update)}}, {0}, update, "");
  EXPECT_LT(one.at.turns().size(), LiveLedger::kTurnsMax);
  for (int i = 0; i < 200; ++i) one.at.to({{"a", std::to_string(++update)}}, {0}, update, "");
  EXPECT_EQ(one.at.turns().size(), LiveLedger::kTurnsMax);
}

TEST(LiveBlocks, AreAsShortAsTheClockAllows) {
  FakeLoop loop;
  const auto units = [&](double unit_s) {
    LiveBlocks blocks(loop);
    blocks.plan(unit_s, 0);
    return blocks.units({});
  };
  EXPECT_EQ(units(0.3).measured, 1);
  EXPECT_EQ(units(0.3).wash_out, 1);
  EXPECT_EQ(units(0.015).measured, 2);
  EXPECT_EQ(units(0.0008).measured, 32);
  EXPECT_EQ(units(0.0008).wash_out, 4);
}

TEST(LiveBlocks, AFirstVisitTakesTwoUnitsMoreAndNoSwitchTakesNone) {
  FakeLoop loop;
  LiveBlocks blocks(loop);
  blocks.plan(0.1, 0);
  EXPECT_EQ(blocks.units({.has_new_change = true}).wash_out, 3);
  EXPECT_EQ(blocks.units({.switches = false}).wash_out, 0);
  EXPECT_EQ(blocks.units({.switch_s = 0.05}).measured, 8);  // A tenth of the block at most.
  EXPECT_EQ(blocks.units({.settles = true}).settled, 1);
  EXPECT_EQ(blocks.units({}).settled, 0);
}

TEST(LiveBlocks, WhatAHostIsAheadOfItsDeviceIsWashedOutTwiceAndBlocksAreTwiceAsLong) {
  FakeLoop loop;
  LiveBlocks blocks(loop);
  blocks.plan(0.1, 0);
  EXPECT_EQ(blocks.usual().units(), 2);
  loop.ahead = 3;
  EXPECT_EQ(blocks.units({}).wash_out, 7);
  EXPECT_EQ(blocks.units({}).measured, 6);
  EXPECT_EQ(blocks.usual().units(), 13);
  EXPECT_EQ(blocks.units({.switches = false}).wash_out, 0);
  EXPECT_EQ(blocks.units({.has_new_change = true}).wash_out, 9);
  loop.ahead = 1;
  EXPECT_EQ(blocks.units({}).measured, 2);
  loop.ahead = 1000;
  EXPECT_EQ(blocks.units({}).measured, 128);
}

TEST(LiveBlocks, WhereDataIsWaitedForTheQueueIsWashedOutAndBlocksAreTwoQueues) {
  FakeLoop loop;
  loop.queue = 6;
  LiveBlocks computes(loop), waits(loop);
  computes.plan(0.1, 0.02);
  waits.plan(0.1, 0.2);
  EXPECT_EQ(computes.units({}).measured, 1);
  EXPECT_EQ(computes.usual().units(), 2);
  EXPECT_EQ(waits.usual().units(), 18);
  for (const LiveBlocks::Block& block :
       {LiveBlocks::Block{.carries_over = true}, LiveBlocks::Block{.may_wait = true}}) {
    EXPECT_EQ(computes.units(block).wash_out, 6);
    EXPECT_EQ(computes.units(block).measured, 12);
  }
  EXPECT_EQ(waits.units({}).wash_out, 6);
  EXPECT_EQ(waits.units({}).measured, 12);
  EXPECT_EQ(waits.units({.proves = true}).wash_out, 12);
  EXPECT_EQ(computes.units({.proves = true}).wash_out, 1);
  // What goes back to settings that load otherwise, among blocks that load alike.
  EXPECT_EQ(computes.units({.switches_queue = true}).wash_out, 6);
  EXPECT_EQ(computes.units({.switches_queue = true}).measured, 1);
  loop.queue = 0;
  LiveBlocks unknown(loop);
  unknown.plan(0.1, 0);
  EXPECT_EQ(unknown.units({.carries_over = true}).measured, 16);
}

TEST(LiveBlocks, TheQueueIsThatOfTheSettingsInForce) {
  FakeLoop loop;
  loop.queue = 4;
  LiveBlocks blocks(loop);
  blocks.plan(0.1, 0);
  loop.queue = 10;
  EXPECT_EQ(blocks.units({.carries_over = true}).wash_out, 10);
  EXPECT_EQ(blocks.units({.carries_over = true}).measured, 20);
  loop.queue = 3;
  EXPECT_EQ(blocks.units({.carries_over = true}).wash_out, 3);
  EXPECT_EQ(blocks.units({.carries_over = true, .measured_min = 20}).measured, 20);
  loop.queue = 0;  // This block has none, the one that it is compared with had.
  EXPECT_EQ(blocks.units({.carries_over = true}).measured, 6);
  EXPECT_EQ(blocks.units({.may_wait = true}).measured, 1);
}

TEST(LiveBlocks, LongPairsTakeASmallPartOfTheUpdatesWhereOthersAreShort) {
  FakeLoop loop;
  LiveBlocks unknown(loop);
  unknown.plan(0.1, 0);
  loop.queue = 4;
  LiveBlocks blocks(loop), of_short_units(loop);
  blocks.plan(0.1, 0);
  of_short_units.plan(0.0008, 0);
  EXPECT_EQ(blocks.pairs_to_a_long_one(), 32);         // 12 units a block in place of 2.
  EXPECT_EQ(of_short_units.pairs_to_a_long_one(), 1);  // They have 36 anyway.
  EXPECT_GT(unknown.pairs_to_a_long_one(), 32);
  blocks.set_waiting(0.5);
  EXPECT_EQ(blocks.pairs_to_a_long_one(), 1);
}

TEST(LiveBlocks, WhatIsKeptDecidesAnewWhetherTheLoopWaits) {
  FakeLoop loop;
  loop.queue = 4;
  LiveBlocks blocks(loop);
  blocks.plan(0.1, 0.5);
  EXPECT_TRUE(blocks.waits_for_data());
  blocks.set_waiting(0.01);
  EXPECT_FALSE(blocks.waits_for_data());
  EXPECT_EQ(blocks.units({}).measured, 1);
}

TEST(LiveBlocks, PairsThatWaitForDataAreNoticedOnce) {
  FakeLoop loop;
  loop.queue = 4;
  LiveBlocks blocks(loop);
  blocks.plan(0.1, 0);
  LivePair pair(BlockUnits{});
  pair.add({.seconds = 0.1}, 0.1);
  pair.begin_second({});
  pair.add({.seconds = 0.1, .wait_s = 0.01}, 0.1);  // In one of the arms.
  int noticed = 0;
  for (int i = 0; i < 20; ++i) noticed += blocks.note(pair);
  EXPECT_EQ(noticed, 1);
  EXPECT_TRUE(blocks.waits_for_data());
  EXPECT_EQ(blocks.units({}).measured, 8);
}

}  // namespace
}  // namespace headrace
