#include "insight/tune/live_course.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::Pair;

Trial trial(const std::string& name, Settings changes) {
  Trial value;
  value.name = name;
  value.changes = std::move(changes);
  return value;
}

LiveLedger sample() {
  LiveLedger live;
  live.ledger.trials = {trial("fused optimizer", {{"optimizer.fused", "true"}}),
                        trial("bf16", {{"train.precision", "bf16"}}), trial("never on", {{"x", "1"}})};
  live.turns = {{5, {{"optimizer.fused", "true"}}, "pair 1, first block"},
                {9, {}, "pair 1, second block"},
                {13, {{"optimizer.fused", "true"}, {"train.precision", "bf16"}}, "pair 2, first block"},
                {17, {{"optimizer.fused", "true"}}, "what is kept"}};
  live.updates = 40;
  return live;
}

TEST(LiveCourse, AChangeIsInForceWhereATurnHasAllOfItsSettings) {
  const std::optional<Report::Course> course = course_of(sample());
  ASSERT_TRUE(course);
  EXPECT_EQ(course->updates, 40);
  ASSERT_EQ(course->rows.size(), 2U);
  EXPECT_EQ(course->rows[0].name, "fused optimizer");
  EXPECT_THAT(course->rows[0].updates, ElementsAre(Pair(5, 8), Pair(13, 40)));  // Turns in a row are one stretch.
  EXPECT_EQ(course->rows[1].name, "bf16");
  EXPECT_THAT(course->rows[1].updates, ElementsAre(Pair(13, 16)));
}

TEST(LiveCourse, ATurnThatBeginsBehindTheLastUpdateWasNeverInForce) {
  LiveLedger live = sample();
  live.updates = 12;
  const std::optional<Report::Course> course = course_of(live);
  ASSERT_EQ(course->rows.size(), 1U);
  EXPECT_THAT(course->rows[0].updates, ElementsAre(Pair(5, 8)));
}

TEST(LiveCourse, AnotherValueOfAKeyIsNotTheChanges) {
  LiveLedger live = sample();
  live.ledger.trials = {trial("fp16", {{"train.precision", "fp16"}})};
  EXPECT_TRUE(course_of(live)->rows.empty());
}

TEST(LiveCourse, WithoutTurnsOrUpdatesThereIsNone) {
  LiveLedger live = sample();
  live.turns.clear();
  EXPECT_FALSE(course_of(live));
  live = sample();
  live.updates = 0;
  EXPECT_FALSE(course_of(live));
}

}  // namespace
}  // namespace headrace
