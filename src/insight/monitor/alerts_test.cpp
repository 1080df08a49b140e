#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/alerts.h>
#include <headrace/error.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/random.h"

namespace headrace {
namespace {

using testing::HasSubstr;

AlertRule hit_rate() {
  AlertRule rule;
  rule.name = "cache hit rate";
  rule.metric = "cache.hit_rate";
  rule.kind = AlertKind::below;
  rule.limit = 0.5;
  return rule;
}

AlertRule memory() {
  AlertRule rule;
  rule.name = "memory";
  rule.metric = "process.resident_bytes";
  rule.kind = AlertKind::above;
  rule.limit = 8e9;
  return rule;
}

std::string refusal_of(const AlertRule& rule) {
  try {
    const AlertWatch watch(rule);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Alerts, AValueAtItsLimitRaisesNothingAndTheNextOneBeyondItDoes) {
  AlertWatch rate(hit_rate());
  EXPECT_FALSE(rate.add(0.5));
  EXPECT_TRUE(rate.add(std::nextafter(0.5, 0.0)));
  AlertWatch bytes(memory());
  EXPECT_FALSE(bytes.add(8'000'000'000));
  EXPECT_TRUE(bytes.add(8'000'000'001));
}

TEST(Alerts, ACrossingIsToldOnceAndAgainOnlyAfterTheValueWasClear) {
  AlertWatch watch(hit_rate());  // Clear at 0.55.
  const std::vector<double> values{0.6, 0.49, 0.3, 0.51, 0.49, 0.549, 0.4, 0.55, 0.54, 0.49};
  std::vector<std::string> told;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto alert = watch.add(values[i], static_cast<std::int64_t>(i))) {
      told.push_back(std::to_string(i) + (alert->raised ? " raised" : " over"));
    }
  }
  EXPECT_THAT(told, testing::ElementsAre("1 raised", "7 over", "9 raised"));
}

TEST(Alerts, TheSentenceNamesTheMetricItsValueAndTheLimit) {
  AlertWatch watch(hit_rate());
  const auto alert = watch.add(0.25, 120);
  ASSERT_TRUE(alert);
  EXPECT_EQ(alert->sentence, "cache hit rate: cache.hit_rate is 0.25, below 0.5 (step 120)");
  EXPECT_EQ(alert->value, 0.25);
  EXPECT_EQ(alert->step, 120);
}

TEST(Alerts, ThereIsNoneFromFewerThanCountMin) {
  AlertRule rule = hit_rate();
  rule.counted_by = "cache.lookups";
  rule.count_min = 100;
  AlertWatch watch(rule);
  EXPECT_FALSE(watch.add(0.1, 1, std::nullopt));
  EXPECT_FALSE(watch.add(0.1, 2, 99));
  EXPECT_TRUE(watch.add(0.1, 3, 100));

  rule = hit_rate();
  rule.count_min = 3;
  AlertWatch values(rule);
  EXPECT_FALSE(values.add(0.1));
  EXPECT_FALSE(values.add(0.1));
  EXPECT_TRUE(values.add(0.1));
}

TEST(Alerts, ADropIsTheMeanOfTheLastTenBelowItsShareOfTheMeanOfAll) {
  AlertRule rule;
  rule.name = "throughput";
  rule.metric = "training_speed";
  rule.kind = AlertKind::drop;
  rule.limit = 0.8;
  // 30 values of 1 and 10 of r: the mean of all is (30 + 10 r) / 40, so that the ratio is 0.8 at r = 0.75.
  const auto is_told = [&](double last) {
    AlertWatch watch(rule);
    bool told = false;
    for (int i = 0; i < 30; ++i) told = watch.add(1).has_value() || told;
    for (int i = 0; i < 10; ++i) told = watch.add(last).has_value() || told;
    return told;
  };
  EXPECT_FALSE(is_told(0.751));
  EXPECT_TRUE(is_told(0.749));
}

TEST(Alerts, ATrendIsToldOnceWhereMemoryGrowsAndNotOfNoise) {
  AlertRule rule;
  rule.name = "memory trend";
  rule.metric = "process.resident_bytes";
  rule.kind = AlertKind::increasing;
  for (const double growth : {0.0, 1e6}) {
    AlertWatch watch(rule);
    SampleRandom random{7, 0, 0};
    int raised = 0;
    for (int i = 0; i < 400; ++i) {
      const auto alert = watch.add(340e6 * (1 + 0.02 * (2 * random.uniform() - 1)) + growth * i, i);
      if (alert && alert->raised) ++raised;
    }
    EXPECT_EQ(raised, growth > 0 ? 1 : 0) << growth;
  }
}

TEST(Alerts, ATrendOverLongCyclesIsToldToo) {
  AlertRule rule;
  rule.name = "memory trend";
  rule.metric = "process.resident_bytes";
  rule.kind = AlertKind::increasing;
  rule.window = 1000;
  AlertWatch watch(rule);
  int raised = 0;
  for (int i = 0; i < 60'000; ++i) {
    const auto alert = watch.add(1e8 + 1e4 * i);
    if (alert && alert->raised) ++raised;
  }
  EXPECT_EQ(raised, 1);
}

TEST(Alerts, AValueThatIsNotFiniteIsPassedOver) {
  AlertWatch watch(hit_rate());
  EXPECT_FALSE(watch.add(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(watch.add(-std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(watch.add(0.1));
}

TEST(Alerts, AFieldThatMakesNoSenseIsNamed) {
  AlertRule rule = hit_rate();
  rule.clear = 0.4;
  EXPECT_THAT(refusal_of(rule), HasSubstr("clear: wanted a number not below the limit 0.5, found 0.4"));
  rule = hit_rate();
  rule.limit = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal_of(rule), HasSubstr("limit: wanted a finite number"));
  rule = hit_rate();
  rule.kind = AlertKind::drop;
  rule.limit = 1.5;
  EXPECT_THAT(refusal_of(rule), HasSubstr("limit: wanted a ratio above 0 and at most 1, found 1.5"));
  rule = hit_rate();
  rule.window = 100'001;
  EXPECT_THAT(refusal_of(rule), HasSubstr("window: wanted 0 to 100000, found 100001"));
  rule = hit_rate();
  rule.metric.clear();
  EXPECT_THAT(refusal_of(rule), HasSubstr("metric: wanted the name of a metric"));
}

}  // namespace
}  // namespace headrace
