#include "insight/monitor/distributions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace headrace {
namespace {

MonitorRecord record_of(std::vector<MetricValue> metrics) {
  return {0, 0, std::move(metrics)};
}

TEST(Distributions, CountTheValuesOfTheNamesThatMatch) {
  Distributions distributions{{"step_s", "time.*"}};
  distributions.take(record_of({{"step_s", 0.5}, {"loss", 3}, {"time.forward_s", 0.1}}));
  distributions.take(record_of({{"step_s", 1.5}, {"step_s", -1}}));
  const std::vector<Metric> metrics = distributions.metrics();
  ASSERT_EQ(metrics.size(), 2U);
  EXPECT_EQ(metrics[0].name, "step_s.distribution");
  EXPECT_EQ(metrics[0].kind, MetricKind::histogram);
  ASSERT_TRUE(metrics[0].histogram);
  EXPECT_EQ(metrics[0].histogram->count(), 3U);
  EXPECT_NEAR(metrics[0].histogram->sum, 2, 1e-9);
  EXPECT_EQ(metrics[0].histogram->counts.front(), 1U);  // Below 0 counts as 0.
  EXPECT_EQ(metrics[1].name, "time.forward_s.distribution");
  distributions.clear();
  EXPECT_TRUE(distributions.metrics().empty());
}

TEST(Distributions, WithoutPatternsAndOfWhatIsNotFiniteThereAreNone) {
  Distributions none;
  none.take(record_of({{"step_s", 1}}));
  EXPECT_TRUE(none.metrics().empty());
  Distributions all{{"*"}};
  all.take(record_of({{"a", std::nan("")}, {"b", INFINITY}, {"c", -INFINITY}, {"d", 1e300}}));
  ASSERT_EQ(all.metrics().size(), 1U);
  EXPECT_EQ(all.metrics()[0].histogram->counts.back(), 1U);
}

TEST(Distributions, HaveAPointForEachTenthMoreValues) {
  Distributions distributions{{"step_s"}};
  std::vector<int> points;
  for (int i = 1; i <= 30; ++i) {
    distributions.take(record_of({{"step_s", 0.1}}));
    if (!distributions.grown().empty()) points.push_back(i);
  }
  EXPECT_EQ(points, (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 21, 24, 27, 30}));
  EXPECT_TRUE(distributions.grown().empty());
}

TEST(Distributions, NamesBeyondTheLimitHaveNone) {
  Distributions distributions{{"*"}};
  for (int i = 0; i < 100; ++i) distributions.take(record_of({{std::to_string(i), 1}}));
  EXPECT_EQ(distributions.metrics().size(), Distributions::kNamesMax);
}

}  // namespace
}  // namespace headrace
