#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/flame_graph.h>

#include <string>
#include <vector>

#include "insight/diagnose/sample_trace.h"

namespace headrace {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kMillisecond = 1'000'000;

// "  forward 5+1 x40 @2": indented by its depth, total and self in ms a call of the root's 40, calls, left edge in ms.
std::vector<std::string> lines_of(const FlameGraph& graph) {
  std::vector<std::string> lines;
  for (const FlameGraph::Frame& frame : graph.frames) {
    lines.push_back(std::string(2 * frame.depth, ' ') + frame.name + ' ' +
                    std::to_string(frame.total_ns / kMillisecond) + '/' + std::to_string(frame.self_ns / kMillisecond) +
                    " x" + std::to_string(frame.calls) + " @" + std::to_string(frame.from_ns / kMillisecond));
  }
  return lines;
}

TEST(FlameGraph, AddsUpEqualStacksBelowTheirThreadTheLongestFirst) {
  EXPECT_THAT(lines_of(flame_graph(sample_trace(5))),
              ElementsAre("main 110/0 x5 @0",                //
                          "  step 110/5 x5 @0",              // 20 + 21 + 22 + 23 + 24, 1 of each in no part.
                          "    backward 40/40 x5 @0",        //
                          "    optimizer 30/30 x5 @40",      //
                          "    forward 25/5 x5 @70",         //
                          "      aten::linear 15/5 x5 @70",  //
                          "        aten::addmm 10/10 x5 @70",
                          "      aten::add 5/5 x5 @85",   //
                          "    data_wait 10/10 x5 @95",   //
                          "loader 0 80/0 x10 @0",         //
                          "  wait for room 50/50 x5 @0",  //
                          "  read 30/30 x5 @50"));
}

TEST(FlameGraph, TheThreadWithStepsStandsFirstHoweverShort) {
  TraceRecord record = sample_trace(1);
  record.threads.push_back("idle");
  record.events.push_back({9, 2, 20 * kMillisecond, 900 * kMillisecond, 0});
  const FlameGraph graph = flame_graph(record, {.threads_max = 2});
  EXPECT_EQ(graph.frames.front().name, "main");
  EXPECT_THAT(lines_of(graph), testing::Contains("idle 880/0 x1 @0"));
  EXPECT_EQ(graph.threads_left_out, 1);
}

TEST(FlameGraph, KeepsTheLongestFramesWithAllThatEnclosesThem) {
  const FlameGraph graph = flame_graph(sample_trace(5), {.frames_max = 5, .threads_max = 1});
  EXPECT_THAT(lines_of(graph), ElementsAre("main 110/0 x5 @0", "  step 110/5 x5 @0", "    backward 40/40 x5 @0",
                                           "    optimizer 30/30 x5 @40", "    forward 25/5 x5 @70"));
  EXPECT_EQ(graph.frames_left_out, 4);
  EXPECT_EQ(graph.threads_left_out, 1);
}

TEST(FlameGraph, LeavesOutWhatIsTooShortOrTooDeepAndCountsIt) {
  const FlameGraph graph = flame_graph(sample_trace(5), {.share_min = 0.2, .depth_max = 3, .threads_max = 1});
  EXPECT_THAT(lines_of(graph), ElementsAre("main 110/0 x5 @0", "  step 110/5 x5 @0", "    backward 40/40 x5 @0",
                                           "    optimizer 30/30 x5 @40", "    forward 25/5 x5 @70"));
  EXPECT_EQ(graph.frames_left_out, 4);
}

TEST(FlameGraph, AmongEqualFramesAParentIsKeptBeforeItsChild) {
  TraceRecord record;
  record.names = {{"outer", "work"}, {"inner", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 5 * kMillisecond, 0}, {1, 0, 0, 5 * kMillisecond, 0}};
  EXPECT_THAT(lines_of(flame_graph(record, {.frames_max = 2})), ElementsAre("main 5/0 x1 @0", "  outer 5/0 x1 @0"));
}

TEST(FlameGraph, NestsAsDeepAsARecordDoes) {
  TraceRecord record;
  record.names = {{"deeper", "work"}};
  record.threads = {"main"};
  constexpr std::int64_t kDepth = 20'000;
  for (std::int64_t i = 0; i < kDepth; ++i) record.events.push_back({0, 0, i, 3 * kDepth - i, 0});
  const FlameGraph graph = flame_graph(record, {.share_min = 0, .depth_max = 1'000'000, .frames_max = 1'000'000});
  EXPECT_EQ(graph.frames.size(), kDepth + 1);
  EXPECT_EQ(graph.frames.back().depth, static_cast<std::size_t>(kDepth));
  EXPECT_EQ(flame_graph(record).frames.size(), FlameLimits{}.depth_max);
}

TEST(FlameGraph, OfARecordWithoutSpansIsEmptyAndABrokenOneIsAnError) {
  EXPECT_TRUE(flame_graph({}).frames.empty());
  TraceRecord record = sample_trace(1);
  record.events[3].name = 99;
  EXPECT_THROW(flame_graph(record), Error);
  record = sample_trace(1);
  record.events[3].thread = 99;
  EXPECT_THROW(flame_graph(record), Error);
}

}  // namespace
}  // namespace headrace
