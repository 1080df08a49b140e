#include "insight/export/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

Metric gauge(const std::string& name, std::vector<MetricLabel> labels = {}) {
  Metric metric;
  metric.name = name;
  metric.labels = std::move(labels);
  metric.value = 1;
  return metric;
}

std::string refusal(const std::vector<Metric>& metrics) {
  return error_of(ErrorCode::invalid_argument, [&] { metric_families(metrics); });
}

TEST(Metric, PointsOfOneNameAreAFamilyInTheOrderOfFirstAppearance) {
  const std::vector<Metric> metrics{gauge("b", {{"gpu", "0"}}), gauge("a"), gauge("b", {{"gpu", "1"}})};
  const auto families = metric_families(metrics);
  ASSERT_EQ(families.size(), 2U);
  EXPECT_THAT(families[0].points, testing::ElementsAre(&metrics[0], &metrics[2]));
  EXPECT_THAT(families[1].points, testing::ElementsAre(&metrics[1]));
}

TEST(Metric, WhatSinksCouldNotTellApartIsRefusedByName) {
  EXPECT_THAT(refusal({gauge("")}), HasSubstr("wanted a name"));
  EXPECT_THAT(refusal({gauge("a", {{"x", "1"}, {"y", "2"}}), gauge("a", {{"y", "2"}, {"x", "1"}})}),
              HasSubstr("a: wanted it once"));
  Metric counter = gauge("a", {{"x", "1"}});
  counter.kind = MetricKind::counter;
  EXPECT_THAT(refusal({gauge("a"), counter}), HasSubstr("found two"));
}

TEST(Metric, BucketsAreChecked) {
  Metric metric = gauge("h");
  metric.kind = MetricKind::histogram;
  metric.histogram = HistogramBuckets{{1, 2}, {3, 4, 5}};
  EXPECT_NO_THROW(check_metric(metric));
  EXPECT_EQ(metric.histogram->count(), 12U);
  metric.histogram->counts.pop_back();
  EXPECT_THAT(refusal({metric}), HasSubstr("h: wanted one count more than the 2 bounds, found 2"));
  metric.histogram = HistogramBuckets{{2, 2}, {3, 4, 5}};
  EXPECT_THAT(refusal({metric}), HasSubstr("ascend, found 2 at 1"));
  metric.histogram = HistogramBuckets{{1, std::numeric_limits<double>::infinity()}, {3, 4, 5}};
  EXPECT_THAT(refusal({metric}), HasSubstr("finite"));
}

TEST(Metric, DurationsAreBucketsOfSecondsWithBoundsThatStay) {
  DurationHistogram durations;
  for (const std::int64_t ns : {0L, 1023L, 1024L, 2'000'000'000L, 1L << 41}) durations.add(ns);
  const HistogramBuckets buckets = duration_buckets(durations);
  check_buckets("step_s", buckets);
  EXPECT_EQ(buckets.upper_bounds, duration_buckets({}).upper_bounds);
  EXPECT_EQ(buckets.upper_bounds.size(), 31U);
  EXPECT_DOUBLE_EQ(buckets.upper_bounds.front(), 1.024e-6);
  EXPECT_EQ(buckets.count(), 5U);
  EXPECT_EQ(buckets.counts.front(), 2U);  // Below 1.024 us.
  EXPECT_EQ(buckets.counts[1], 1U);       // At it.
  EXPECT_EQ(buckets.counts.back(), 1U);   // Above 18 minutes.
  EXPECT_DOUBLE_EQ(buckets.min, 0);
  EXPECT_DOUBLE_EQ(buckets.max, 1e-9 * static_cast<double>(1L << 41));
  EXPECT_NEAR(buckets.sum, 2 + buckets.max, 1e-3);
  EXPECT_EQ(duration_buckets({}).count(), 0U);
}

}  // namespace
}  // namespace headrace
