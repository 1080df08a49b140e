#include "core/trace/tracks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using testing::ElementsAre;

TraceRecord record_of(std::vector<TraceEvent> events) {
  TraceRecord record;
  record.names = {{"work", "work"}, {"fill", "mark"}};
  record.threads = {"main", "loader"};
  record.events = std::move(events);
  return record;
}

TEST(Tracks, SpansThatNestOrFollowStayOnTheirThread) {
  const Tracks tracks = assign_tracks(
      record_of({{0, 0, 0, 10, 0}, {0, 0, 0, 10, 0}, {0, 0, 2, 10, 0}, {0, 1, 5, 20, 0}, {0, 0, 10, 11, 0}}));
  EXPECT_THAT(tracks.names, ElementsAre("main", "loader"));
  EXPECT_THAT(tracks.of_event, ElementsAre(0, 0, 0, 1, 0));
}

TEST(Tracks, WhatOutlivesTheSpanAroundItGetsARowOfItsOwn) {
  // The second overlaps the first, the third both; then the thread's own row is free again.
  const Tracks tracks = assign_tracks(record_of(
      {{0, 0, 0, 10, 0}, {0, 0, 5, 15, 0}, {0, 0, 7, 20, 0}, {0, 0, 11, 14, 0}, {1, 0, 12, 12, 3}, {0, 0, 20, 30, 0}}));
  EXPECT_THAT(tracks.names, ElementsAre("main", "loader", "main (2)", "main (3)"));
  EXPECT_THAT(tracks.threads, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(tracks.of_event, ElementsAre(0, 2, 3, 0, 0, 0));
}

TEST(Tracks, GaugesStayOnTheirThread) {
  EXPECT_THAT(assign_tracks(record_of({{0, 1, 0, 10, 0}, {1, 1, 5, 5, 1}})).of_event, ElementsAre(1, 1));
}

}  // namespace
}  // namespace headrace
