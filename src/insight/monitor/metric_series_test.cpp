#include "insight/monitor/metric_series.h"

#include <gtest/gtest.h>
#include <headrace/error.h>

#include <cmath>
#include <limits>

#include "core/base/random.h"

namespace headrace {
namespace {

// A step of 20 ms with even noise of that width on either side.
double step_s(SampleRandom& random, double noise) {
  return 0.020 * (1 + noise * (2 * random.uniform() - 1));
}

TEST(MetricSeries, ASlowdownOf20PercentAtStep500IsFoundWithin100Steps) {
  for (const double noise : {0.0, 0.02, 0.1, 0.15}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      SampleRandom random{seed, 0, 0};
      MetricSeries series;
      for (int i = 0; i < 600; ++i) series.add(step_s(random, noise) * (i < 500 ? 1 : 1.2));
      const auto found = series.statistics()->slowdown;
      ASSERT_TRUE(found) << noise << " " << seed;
      EXPECT_GE(found->found_at, 500) << noise << " " << seed;
      EXPECT_NEAR(found->ratio, 1.2, 0.02 + 1.2 * noise) << noise << " " << seed;  // A median of 6 to 40 values.
    }
  }
}

TEST(MetricSeries, NoiseAloneIsNoSlowdown) {
  int found = 0;
  for (const double noise : {0.0, 0.02, 0.1, 0.2}) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      SampleRandom random{seed, 1, 0};
      MetricSeries series;
      for (int i = 0; i < 2000; ++i) series.add(step_s(random, noise));
      if (series.statistics()->slowdown) ++found;
    }
  }
  EXPECT_EQ(found, 0);
}

TEST(MetricSeries, PausesAreNoSlowdown) {
  SampleRandom random{3, 2, 0};
  MetricSeries series;
  for (int i = 0; i < 2000; ++i) series.add(step_s(random, 0.05) * (i % 50 == 49 ? 30 : 1));  // A checkpoint.
  EXPECT_FALSE(series.statistics()->slowdown);
}

TEST(MetricSeries, FiguresAreOfTheNewestValuesAndTheMeanOfAll) {
  MetricSeries series(4);
  EXPECT_FALSE(series.statistics());
  for (const double value : {100.0, 1.0, 2.0, 3.0, 4.0}) series.add(value);
  series.add(std::numeric_limits<double>::quiet_NaN());
  const auto figures = series.statistics();
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->count, 5);
  EXPECT_EQ(figures->last, 4);
  EXPECT_EQ(figures->mean, 22);
  EXPECT_EQ(figures->rolling_mean, 2.5);
  EXPECT_EQ(figures->minimum, 1);
  EXPECT_EQ(figures->maximum, 4);
  EXPECT_EQ(figures->p50, 2.5);  // numpy.percentile([1, 2, 3, 4], [50, 95, 99]).
  EXPECT_NEAR(figures->p95, 3.85, 1e-12);
  EXPECT_NEAR(figures->p99, 3.97, 1e-12);
  EXPECT_NEAR(figures->slope, 1, 1e-12);
}

TEST(MetricSeries, AWindowOfOneValueIsRefused) {
  EXPECT_THROW(MetricSeries(1), Error);
}

}  // namespace
}  // namespace headrace
