#include "insight/tune/loop_units.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace {
namespace {

constexpr LoopThread kHere = 1, kElsewhere = 2;

// A loop with one model and one optimizer, each step of which takes a second.
struct Loop {
  std::shared_ptr<EpochCounts> epochs = std::make_shared<EpochCounts>();
  LoopUnits units{1, epochs};
  double now_s = 0;

  LoopUnits::End step(int calls = 1) {
    for (int i = 0; i < calls; ++i) units.see_call(true, true, 8);
    units.begin_step(0, kHere);
    now_s += 1;
    return units.end_step(0, kHere, now_s);
  }
  // Why each of so many steps does not count.
  std::vector<std::string> steps(int count) {
    std::vector<std::string> found;
    for (int i = 0; i < count; ++i) {
      if (step() == LoopUnits::End::unit) found.push_back(units.unit().why_not);
    }
    return found;
  }
};

using Reasons = std::vector<std::string>;

TEST(LoopUnits, TheFirstUpdateBeginsTheFirstUnit) {
  Loop loop;
  EXPECT_EQ(loop.step(), LoopUnits::End::first);
  EXPECT_EQ(loop.steps(2), (Reasons{"the first of its kind", ""}));
  const LiveUnit& unit = loop.units.unit();
  EXPECT_EQ(unit.update, 3);
  EXPECT_EQ(unit.seconds, 1);
  EXPECT_EQ(unit.work, 8);
  EXPECT_TRUE(unit.countable);
  EXPECT_EQ(loop.units.thread(), kHere);
}

TEST(LoopUnits, UpdatesThatWereMadeBeforeAreCountedIn) {
  LoopUnits units{1, std::make_shared<EpochCounts>(), 100};
  for (int step = 0; step < 2; ++step) {
    units.begin_step(0, kHere);
    units.end_step(0, kHere, step);
  }
  EXPECT_EQ(units.updates(), 102);
  EXPECT_EQ(units.unit().update, 102);
}

TEST(LoopUnits, WhatHappensWhileItIsTellingIsNoEvent) {
  Loop loop;
  loop.steps(3);
  loop.units.set_telling(true);
  loop.units.see_call(false, true, 8);
  loop.units.see_checkpoint();
  EXPECT_FALSE(loop.units.begin_step(0, kHere));
  EXPECT_EQ(loop.units.end_step(0, kHere, 9), LoopUnits::End::nothing);
  loop.units.set_telling(false);
  EXPECT_EQ(loop.steps(1), (Reasons{""}));
  EXPECT_EQ(loop.units.updates(), 4);
}

TEST(LoopUnits, AStepThatRaisedIsAnException) {
  Loop loop;
  loop.steps(3);
  loop.units.begin_step(0, kHere);
  EXPECT_EQ(loop.steps(2), (Reasons{"an exception", ""}));
}

TEST(LoopUnits, IsAskedOnceAnUpdate) {
  Loop loop;
  loop.steps(2);
  EXPECT_TRUE(loop.units.begin_step(0, kHere));
  loop.units.note_asked();
  EXPECT_FALSE(loop.units.begin_step(0, kHere));
  loop.units.end_step(0, kHere, 3);
  EXPECT_TRUE(loop.units.begin_step(0, kHere));
}

TEST(LoopUnits, AStepInAnotherThreadIsAProblem) {
  Loop loop;
  loop.steps(3);
  EXPECT_FALSE(loop.units.begin_step(0, kElsewhere));
  EXPECT_EQ(loop.units.end_step(0, kElsewhere, 9), LoopUnits::End::nothing);
  EXPECT_EQ(loop.units.problem(), "the optimizer steps in two threads");
  EXPECT_EQ(loop.steps(1), (Reasons{"the optimizer steps in two threads"}));
}

TEST(LoopUnits, AnInterruptedUnitIsTold) {
  Loop loop;
  loop.steps(3);
  loop.units.interrupt();
  EXPECT_EQ(loop.step(), LoopUnits::End::first);
}

TEST(LoopUnits, AUnitThatIsLeftOutDoesNotCount) {
  Loop loop;
  loop.steps(3);
  loop.units.leave_out("something was written");
  EXPECT_EQ(loop.steps(2), (Reasons{"something was written", ""}));
}

TEST(LoopUnits, CountsBatchesWhereTheLoaderGivesSome) {
  Loop loop;
  loop.epochs->set_watched(true);
  for (int i = 0; i < 4; ++i) {
    loop.epochs->note_batch(kHere, 0.25);
    loop.step(3);
  }
  EXPECT_EQ(loop.units.micro_batches(), 1);
  EXPECT_EQ(loop.units.unit().wait_s, 0.25);
  EXPECT_EQ(loop.units.unit().work, 24);
}

TEST(LoopUnits, TheLastOf32TellWhatIsUsual) {
  Loop loop;
  loop.steps(40);
  std::vector<std::string> found;
  for (int i = 0; i < 20; ++i) {
    loop.step(2);
    found.push_back(loop.units.unit().why_not);
  }
  EXPECT_EQ(found[0], "2 micro-batches, not 1");
  EXPECT_EQ(found[15], "2 micro-batches, not 1");  // 16 of each: what was usual stays so.
  EXPECT_EQ(found[16], "");
}

TEST(LoopUnits, NoUpdateInThreeEpochsIsAProblem) {
  Loop loop;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(loop.units.problem(), "");
    loop.epochs->note_begin(kHere, 0);
    loop.epochs->note_end(kHere, 0, 5);
  }
  EXPECT_EQ(loop.units.problem(), "no update in 3 epochs");
}

}  // namespace
}  // namespace headrace
