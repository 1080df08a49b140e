#include "insight/tune/epoch_counts.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

constexpr LoopThread kHere = 1, kElsewhere = 2;

TEST(EpochCounts, WhatAnotherThreadTakesIsNoUpdates) {
  EpochCounts epochs;
  epochs.note_batch(kElsewhere, 1);  // The loop's thread is not known yet.
  epochs.set_thread(kHere);
  epochs.note_batch(kElsewhere, 1);
  epochs.note_failure(kElsewhere);
  epochs.note_begin(kElsewhere, 1);
  epochs.note_end(kElsewhere, 1, 5);
  const EpochCounts::Update taken = epochs.take();
  EXPECT_EQ(taken.batches, 1);
  EXPECT_EQ(taken.begun + taken.ended + taken.failed, 0);
  EXPECT_EQ(taken.wait_s, 1);
  EXPECT_EQ(epochs.batches(), 2);
  EXPECT_EQ(epochs.own_batches(), 1);
  EXPECT_EQ(epochs.begun(), 1);
  EXPECT_EQ(epochs.length(), 5);
  EXPECT_EQ(epochs.take().batches, 0);
}

TEST(EpochCounts, TwoLoadersThatTakeTurnsAreAProblem) {
  EpochCounts epochs;
  epochs.set_watched(true);
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(epochs.problem(), "");
    if (i % 2 == 0) epochs.note_batch(kHere, 0);
    epochs.take();
  }
  EXPECT_NE(epochs.problem().find("24 of 48 updates took no batch"), std::string::npos) << epochs.problem();
}

TEST(EpochCounts, OfALoaderThatIsNotSeenNothingIsSaid) {
  EpochCounts epochs;
  for (int i = 0; i < 96; ++i) {
    if (i % 2 == 0) epochs.note_batch(kHere, 0);
    epochs.take();
  }
  EXPECT_EQ(epochs.problem(), "");
}

}  // namespace
}  // namespace headrace
