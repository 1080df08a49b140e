#include "core/trace/flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

TraceRecord two_batches() {
  TraceRecord record;
  record.names = {{"load", "work"}, {"wait", "wait"}, {"fill", "mark"}};
  record.threads = {"loader 0", "main"};
  // Two chunks of batch 7, one of batch 8, a gauge named like nothing, and batch 7 again in the next epoch.
  record.events = {{0, 0, 0, 10, 7},  {0, 0, 10, 20, 7}, {0, 0, 20, 30, 8}, {2, 1, 21, 21, 7}, {1, 1, 25, 26, 7},
                   {1, 1, 40, 41, 8}, {0, 0, 50, 60, 7}, {0, 0, 60, 70, 9}, {1, 1, 70, 71, 7}};
  return record;
}

TEST(Flows, EachSourceGoesToTheNextTargetOfItsValue) {
  const auto flows = flows_by_value(two_batches(), "load", "wait");
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  for (const TraceFlow& flow : flows) found.emplace_back(flow.source, flow.target);
  EXPECT_THAT(found,
              testing::ElementsAre(testing::Pair(0, 4), testing::Pair(1, 4), testing::Pair(2, 5), testing::Pair(6, 8)));
  EXPECT_NO_THROW(check_flows(two_batches(), flows));
}

TEST(Flows, OfOneNameGoFromEachSpanToTheNextAndNoneToItself) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  for (const auto& flow : flows_by_value(two_batches(), "load", "load")) found.emplace_back(flow.source, flow.target);
  EXPECT_THAT(found, testing::ElementsAre(testing::Pair(0, 1), testing::Pair(1, 6)));
}

TEST(Flows, UnknownNamesGiveNone) {
  EXPECT_TRUE(flows_by_value(two_batches(), "load", "other").empty());
  EXPECT_TRUE(flows_by_value({}, "load", "wait").empty());
}

TEST(Flows, WhatIsNoPairOfSpansInOrderIsRefusedByItsNumber) {
  const TraceRecord record = two_batches();
  const auto refusal = [&](TraceFlow flow) {
    const TraceFlow flows[] = {{0, 4}, flow};
    return error_of(ErrorCode::invalid_argument, [&] { check_flows(record, flows); });
  };
  EXPECT_THAT(refusal({0, 9}), HasSubstr("flows[1]: wanted two of 9 events that are spans, found 0 and 9"));
  EXPECT_THAT(refusal({3, 4}), HasSubstr("flows[1]"));
  EXPECT_THAT(refusal({5, 4}), HasSubstr("begins no earlier than its source, found 25 ns after 40 ns"));
  EXPECT_THAT(refusal({4, 4}), HasSubstr("flows[1]"));
}

}  // namespace
}  // namespace headrace
