#include "engine/verbs/train_alerts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

AlertOptions all_alerts() {
  AlertOptions options;
  options.throughput_min = 0.8;
  options.hit_rate_min = 0.5;
  options.memory_mib_max = 2;
  options.memory_trend = true;
  options.exit_code = 7;
  return options;
}

const Applied kNoCache{"data.cache", "none", "none", ""};
const Applied kDecoded{"data.cache", "decoded", "decoded", ""};

Applied setting_of(const std::vector<Applied>& settings, const std::string& key) {
  for (const Applied& setting : settings) {
    if (setting.key == "report.alerts." + key) return setting;
  }
  ADD_FAILURE() << "no setting " << key;
  return {};
}

TEST(AlertRules, WhatIsNotAskedForIsNoRuleAndNoSetting) {
  EXPECT_THAT(alert_rules({}), IsEmpty());
  EXPECT_THAT(alert_settings({}, kNoCache, 1), IsEmpty());
}

TEST(AlertRules, EachKeyIsTheRuleOfItsMetricAtItsLimit) {
  std::vector<std::string> found;
  for (const AlertRule& rule : alert_rules(all_alerts())) {
    found.push_back(rule.name + ": " + rule.metric + " " + to_string(rule.kind) + " " + std::to_string(rule.limit));
    EXPECT_NO_THROW(AlertWatch{rule});
  }
  EXPECT_THAT(found, ElementsAre("cache hit rate: cache.hit_rate below 0.500000",
                                 "memory trend: process.resident_bytes increasing 0.000000",
                                 "memory: process.resident_bytes above 2097152.000000",
                                 "throughput: samples_per_s drop 0.800000"));
}

TEST(AlertRules, AHitRateCountsFromAHundredLookupsOn) {
  AlertOptions options;
  options.hit_rate_min = 0.5;
  AlertWatch watch(alert_rules(options).at(0));
  EXPECT_FALSE(watch.add(0.1, 1, 99));
  EXPECT_TRUE(watch.add(0.1, 2, 100));
}

TEST(AlertSettings, WhatCanBeJudgedIsAppliedAsRequested) {
  std::vector<std::string> keys;
  for (const Applied& setting : alert_settings(all_alerts(), kDecoded, 1)) {
    keys.push_back(setting.key);
    EXPECT_EQ(setting.applied, setting.requested);
    EXPECT_EQ(setting.reason, "");
  }
  EXPECT_THAT(keys,
              ElementsAre("report.alerts.throughput_min", "report.alerts.hit_rate_min", "report.alerts.memory_mib_max",
                          "report.alerts.memory_trend", "report.alerts.exit_code"));
}

TEST(AlertSettings, WithoutACacheTheHitRateIsUnavailableWithTheReason) {
  const Applied refused{"data.cache", "encoded", "none", "the source gives pixels, no files"};
  const Applied setting = setting_of(alert_settings(all_alerts(), refused, 1), "hit_rate_min");
  EXPECT_EQ(setting.requested, "0.5");
  EXPECT_EQ(setting.applied, "unavailable");
  EXPECT_THAT(setting.reason, HasSubstr("data.cache is none"));
  EXPECT_THAT(setting.reason, HasSubstr("the source gives pixels, no files"));
  const Applied later{"data.cache", "auto", "none", ""};  // May be filled from the second epoch on.
  EXPECT_EQ(setting_of(alert_settings(all_alerts(), later, 1), "hit_rate_min").applied, "0.5");
}

TEST(AlertSettings, MemoryThatTheSystemDoesNotTellIsUnavailable) {
  const std::vector<Applied> settings = alert_settings(all_alerts(), kDecoded, std::nullopt);
  EXPECT_EQ(setting_of(settings, "memory_mib_max").applied, "unavailable");
  EXPECT_EQ(setting_of(settings, "memory_trend").applied, "unavailable");
  EXPECT_EQ(setting_of(settings, "throughput_min").applied, "0.8");
}

TEST(AlertSettings, AnExitCodeWithoutAnAlertIsNotApplied) {
  AlertOptions options;
  options.exit_code = 7;
  EXPECT_EQ(setting_of(alert_settings(options, kNoCache, 1), "exit_code").applied, "0");
  options.hit_rate_min = 0.5;  // Which has nothing to judge.
  EXPECT_EQ(setting_of(alert_settings(options, kNoCache, 1), "exit_code").applied, "0");
  EXPECT_EQ(setting_of(alert_settings(options, kDecoded, 1), "exit_code").applied, "7");
}

TEST(WatchedRun, ThatOneWasRaisedIsKnownWhateverCameAfter) {
  WatchedRun run;
  EXPECT_FALSE(run.any_raised);
  Alert alert{"memory", "process.resident_bytes", AlertKind::above, true, 3, 2, 1, "memory: above"};
  run.add(event_of(alert));
  EXPECT_TRUE(run.any_raised);
  alert.raised = false;
  for (int i = 0; i < 1000; ++i) run.add(event_of(alert));
  EXPECT_TRUE(run.any_raised);
  EXPECT_EQ(run.alerts.size(), 1000U);
}

TEST(WatchedRun, ItsJsonHasAlertsAndFlights) {
  WatchedRun run;
  run.add(event_of(Alert{"memory", "process.resident_bytes", AlertKind::above, true, 3, 2, 1, "memory: above"}));
  run.flights.push_back({"flights/flight-00-signal.json", "signal", 5, 1});
  const nlohmann::ordered_json document = to_json(run);
  EXPECT_EQ(document["alerts"][0]["fields"]["name"], "memory");
  EXPECT_EQ(document["alerts"][0]["step"], 1);
  EXPECT_EQ(document["flights"][0]["path"], "flights/flight-00-signal.json");
  EXPECT_EQ(document["flights"][0]["dropped"], 1);
  EXPECT_EQ(to_json(WatchedRun{}).dump(), R"({"alerts":[],"flights":[]})");
}

}  // namespace
}  // namespace headrace
