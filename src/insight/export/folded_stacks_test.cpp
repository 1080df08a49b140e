#include "insight/export/folded_stacks.h"

#include <gtest/gtest.h>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

TraceRecord record_of(std::vector<TraceEvent> events) {
  TraceRecord record;
  record.names = {{"step", "step"}, {"for;ward\n", "step"}, {"fill", "mark"}, {"read", "work"}};
  record.threads = {"main", "loader 0"};
  record.events = std::move(events);
  return record;
}

TEST(FoldedStacks, ALineIsTheTimeInWhichItsLastNameWasTheInnermost) {
  const std::string lines = folded_stacks(record_of({{0, 0, 0, 100, 0},
                                                     {1, 0, 10, 40, 0},
                                                     {3, 0, 20, 25, 0},
                                                     {2, 0, 30, 30, 9},
                                                     {1, 0, 40, 50, 0},
                                                     {3, 1, 0, 7, 0},
                                                     {0, 0, 100, 110, 0}}));
  EXPECT_EQ(lines,
            "main;step 70\n"
            "main;step;for:ward  35\n"
            "main;step;for:ward ;read 5\n"
            "loader 0;read 7\n");
}

TEST(FoldedStacks, AStackThatIsAllItsChildrenHasNoLine) {
  EXPECT_EQ(folded_stacks(record_of({{0, 0, 0, 10, 0}, {3, 0, 0, 10, 0}})), "main;step;read 10\n");
}

TEST(FoldedStacks, RecursionIsAStackOfItsOwn) {
  EXPECT_EQ(folded_stacks(record_of({{3, 0, 0, 10, 0}, {3, 0, 2, 4, 0}})), "main;read 8\nmain;read;read 2\n");
}

TEST(FoldedStacks, NamesThatDifferInTheirCategoryAloneAreOneFrame) {
  TraceRecord record = record_of({{3, 0, 0, 10, 0}, {4, 0, 20, 25, 0}});
  record.names.push_back({"read", "[3, 4]"});
  EXPECT_EQ(folded_stacks(record), "main;read 15\n");
}

TEST(FoldedStacks, OverlapsAreNotCountedTwice) {
  EXPECT_EQ(folded_stacks(record_of({{0, 0, 0, 10, 0}, {3, 0, 5, 15, 0}})), "main;step 10\nmain (2);read 10\n");
}

TEST(FoldedStacks, FileHoldsTheLines) {
  const TemporaryFolder folder;
  write_folded_stacks(record_of({{3, 1, 0, 7, 0}}), folder.path() / "stacks.folded");
  EXPECT_EQ(read_file(folder.path() / "stacks.folded", 1 << 20), "loader 0;read 7\n");
  EXPECT_EQ(folded_stacks({}), "");
}

}  // namespace
}  // namespace headrace
