#include "core/trace/stack_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using testing::ElementsAre;

TraceRecord record_of(std::vector<TraceEvent> events) {
  TraceRecord record;
  record.names = {{"step", "step"}, {"forward", "step"}, {"fill", "mark"}, {"read", "work"}, {"read", "wait"}};
  record.threads = {"main", "loader 0"};
  record.events = std::move(events);
  return record;
}

// parent, name, calls, total, self; of a root -1 as its parent.
std::vector<std::vector<std::int64_t>> rows_of(const StackTree& tree) {
  std::vector<std::vector<std::int64_t>> rows;
  for (const StackTree::Node& node : tree.nodes) {
    rows.push_back({node.parent == StackTree::kNone ? -1 : std::int64_t{node.parent}, node.name, node.calls,
                    node.total_ns, node.self_ns});
  }
  return rows;
}

TEST(StackTree, HasANodeForEachDistinctStackWithTheTimeOfItsCalls) {
  const StackTree tree = stack_tree(record_of({{0, 0, 0, 100, 0},
                                               {1, 0, 10, 40, 0},
                                               {3, 0, 20, 25, 0},
                                               {2, 0, 30, 30, 9},
                                               {1, 0, 40, 50, 0},
                                               {3, 1, 0, 7, 0},
                                               {0, 0, 100, 110, 0}}));
  EXPECT_THAT(tree.tracks, ElementsAre("main", "loader 0"));
  EXPECT_THAT(rows_of(tree),
              ElementsAre(ElementsAre(-1, 0, 2, 110, 0), ElementsAre(-1, 1, 1, 7, 0), ElementsAre(0, 0, 2, 110, 70),
                          ElementsAre(2, 1, 2, 40, 35), ElementsAre(3, 3, 1, 5, 5), ElementsAre(1, 3, 1, 7, 7)));
}

TEST(StackTree, ANameBelowItselfIsANodeOfItsOwn) {
  EXPECT_THAT(rows_of(stack_tree(record_of({{3, 0, 0, 10, 0}, {3, 0, 2, 4, 0}}))),
              ElementsAre(ElementsAre(-1, 0, 1, 10, 0), ElementsAre(-1, 1, 0, 0, 0), ElementsAre(0, 3, 1, 10, 8),
                          ElementsAre(2, 3, 1, 2, 2)));
}

TEST(StackTree, NamesThatDifferInTheirCategoryAloneAreOneNode) {
  EXPECT_THAT(rows_of(stack_tree(record_of({{4, 0, 0, 10, 0}, {3, 0, 20, 25, 0}}))),
              ElementsAre(ElementsAre(-1, 0, 2, 15, 0), ElementsAre(-1, 1, 0, 0, 0), ElementsAre(0, 3, 2, 15, 15)));
}

TEST(StackTree, WhatOverlapsLiesOnATrackOfItsOwn) {
  const StackTree tree = stack_tree(record_of({{0, 0, 0, 10, 0}, {3, 0, 5, 15, 0}}));
  EXPECT_THAT(tree.tracks, ElementsAre("main", "loader 0", "main (2)"));
  EXPECT_THAT(rows_of(tree),
              ElementsAre(ElementsAre(-1, 0, 1, 10, 0), ElementsAre(-1, 1, 0, 0, 0), ElementsAre(-1, 2, 1, 10, 0),
                          ElementsAre(0, 0, 1, 10, 10), ElementsAre(2, 3, 1, 10, 10)));
}

TEST(StackTree, OfARecordWithoutSpansHasRootsAlone) {
  EXPECT_THAT(rows_of(stack_tree(record_of({{2, 0, 5, 5, 1}}))),
              ElementsAre(ElementsAre(-1, 0, 0, 0, 0), ElementsAre(-1, 1, 0, 0, 0)));
  EXPECT_TRUE(stack_tree({}).nodes.empty());
}

}  // namespace
}  // namespace headrace
