#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/operator_table.h>

#include <algorithm>
#include <string>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Optional;

constexpr std::uint32_t kLinear = 0, kAddmm = 1, kAddmmWide = 2, kStep = 3, kTransposed = 4, kGauge = 5;

TraceRecord empty_record(const std::string& category, std::size_t threads = 1) {
  TraceRecord record;
  record.names = {{"aten::linear", category},
                  {"aten::addmm", category + " [[4], [2, 3]]"},
                  {"aten::addmm", category + " [[4], [2, 30]]"},
                  {"step", "step"},
                  {"aten::t", category},
                  {"operator_memory", "mark"}};
  for (std::size_t i = 0; i < threads; ++i) record.threads.push_back("thread " + std::to_string(i));
  return record;
}

void add(TraceRecord& record, std::uint32_t name, std::int64_t begin, std::int64_t end, std::int64_t value = 0,
         std::uint32_t thread = 0) {
  record.events.push_back({name, thread, begin, end, value});
}

const OperatorStatistics& row(const std::vector<OperatorStatistics>& table, const std::string& name) {
  return *std::find_if(table.begin(), table.end(), [&](const OperatorStatistics& one) { return one.name == name; });
}

TEST(OperatorTable, TimeAndMemoryOfItselfLeaveOutWhatItCalls) {
  TraceRecord record = empty_record("operator,memory");
  add(record, kStep, 0, 1000);
  add(record, kLinear, 100, 200, 64);
  add(record, kTransposed, 110, 120, 0);
  add(record, kAddmm, 130, 190, 48);
  add(record, kGauge, 195, 195, 64);
  const std::vector<OperatorStatistics> table = operator_table(record);
  EXPECT_THAT(table, ElementsAre(Field(&OperatorStatistics::name, "aten::addmm"),
                                 Field(&OperatorStatistics::name, "aten::linear"),
                                 Field(&OperatorStatistics::name, "aten::t")));
  EXPECT_EQ(table[0].self_ns, 60);
  EXPECT_EQ(table[1].total_ns, 100);
  EXPECT_EQ(table[1].self_ns, 30);
  EXPECT_THAT(table[1].bytes, Optional(64));
  EXPECT_THAT(table[1].self_bytes, Optional(16));
}

TEST(OperatorTable, MemoryThatNobodyRecordedIsUnavailable) {
  TraceRecord record = empty_record("operator");
  add(record, kAddmm, 0, 10);
  const std::vector<OperatorStatistics> table = operator_table(record);
  ASSERT_EQ(table.size(), 1U);
  EXPECT_EQ(table[0].bytes, std::nullopt);
  EXPECT_EQ(table[0].self_bytes, std::nullopt);
}

TEST(OperatorTable, GroupsByNameOrByNameAndShapes) {
  TraceRecord record = empty_record("operator");
  add(record, kAddmm, 0, 10);
  add(record, kAddmmWide, 20, 50);
  add(record, kAddmm, 60, 70);
  const std::vector<OperatorStatistics> table = operator_table(record);
  ASSERT_EQ(table.size(), 1U);
  EXPECT_EQ(table[0].calls, 3);
  EXPECT_EQ(table[0].shapes, "");
  const std::vector<OperatorStatistics> by_shapes = operator_table(record, true);
  ASSERT_EQ(by_shapes.size(), 2U);
  EXPECT_EQ(by_shapes[0].shapes, "[[4], [2, 30]]");
  EXPECT_EQ(by_shapes[0].calls, 1);
  EXPECT_EQ(by_shapes[1].calls, 2);
}

TEST(OperatorTable, AnOnlyChildOfTheSameNameIsNoSecondCall) {
  TraceRecord record = empty_record("operator");
  add(record, kAddmm, 0, 100);  // Three times the same call, which calls something else.
  add(record, kAddmm, 10, 90);
  add(record, kAddmm, 20, 80);
  add(record, kTransposed, 30, 70);
  const std::vector<OperatorStatistics> table = operator_table(record);
  EXPECT_EQ(row(table, "aten::addmm").calls, 1);
  EXPECT_EQ(row(table, "aten::addmm").total_ns, 100);
  EXPECT_EQ(row(table, "aten::addmm").self_ns, 60);

  TraceRecord two = empty_record("operator");  // Two children: two calls more.
  add(two, kAddmm, 0, 100);
  add(two, kAddmm, 10, 40);
  add(two, kAddmm, 50, 80);
  EXPECT_EQ(row(operator_table(two), "aten::addmm").calls, 3);
}

TEST(OperatorTable, ThreadsNestEachForItself) {
  TraceRecord record = empty_record("operator", 2);
  add(record, kLinear, 0, 100, 0, 0);
  add(record, kAddmm, 10, 90, 0, 1);
  EXPECT_EQ(row(operator_table(record), "aten::linear").self_ns, 100);
}

TEST(OperatorTable, AnOperatorThatEndsAfterTheOneAroundItIsNoChild) {
  TraceRecord record = empty_record("operator");
  add(record, kLinear, 0, 100);
  add(record, kAddmm, 50, 150);
  EXPECT_EQ(row(operator_table(record), "aten::linear").self_ns, 100);
}

TEST(OperatorTable, WithoutOperatorsItIsEmpty) {
  TraceRecord record = empty_record("operators");  // Another category.
  add(record, kStep, 0, 10);
  add(record, kLinear, 0, 10);
  EXPECT_THAT(operator_table(record), IsEmpty());
}

TEST(OperatorTable, AnEventOfAnUnknownNameIsNamed) {
  TraceRecord record = empty_record("operator");
  add(record, 77, 0, 10);
  EXPECT_THROW(operator_table(record), Error);
}

}  // namespace
}  // namespace headrace
