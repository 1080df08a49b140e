#include "insight/compare/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;

const HistoryKey kKey{"profile r.toml", "one machine"};

CompareVerdict verdict(double change, const std::string& name = "step_p50_s") {
  CompareVerdict verdict{.pairs = 20};
  MetricVerdict metric{.rule = rule_of(name, {}), .change = MetricChange::equivalent, .old_value = 1, .new_value = 1};
  metric.interval = Interval{change, change - 0.005, change + 0.005};
  verdict.metrics.push_back(metric);
  return verdict;
}

class HistoryFile : public testing::Test {
 protected:
  std::string refusal() const {
    return error_of(ErrorCode::corrupt_data, [&] { History history(path_); });
  }
  void run_sql(const char* sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_.path() / "history.db";
};

TEST_F(HistoryFile, KeepsItsBuildsInOrderAcrossProcesses) {
  for (int build = 1; build <= 3; ++build) {
    History history(path_);
    history.add(kKey, "b" + std::to_string(build - 1), "b" + std::to_string(build), "now", verdict(0.01));
  }
  const History history(path_);
  EXPECT_EQ(history.comparisons(), 3);
  const std::vector<HistoryPoint> points = history.points(kKey, "step_p50_s");
  ASSERT_EQ(points.size(), 4);
  for (std::size_t i = 0; i < points.size(); ++i) EXPECT_EQ(points[i].label, "b" + std::to_string(i));
  EXPECT_FALSE(points[0].parent);
  EXPECT_EQ(points[3].parent, 2);
  EXPECT_NEAR(points[3].effect, std::log(1.01), 1e-9);
  EXPECT_NEAR(points[3].deviation, 0.005 / 1.01 / 1.96, 1e-4);
}

// REG-07, from the verdicts to the finding.
TEST_F(HistoryFile, OnePercentABuildIsFoundAfterTenBuilds) {
  History history(path_);
  for (int build = 1; build <= 10; ++build) {
    history.add(kKey, "b" + std::to_string(build - 1), "b" + std::to_string(build), "now", verdict(0.01));
  }
  const std::vector<Drift> drifts = find_drifts(history.points(kKey, "step_p50_s"), std::log(1.02));
  ASSERT_EQ(drifts.size(), 1);
  EXPECT_EQ(drifts[0].last, 10);
  EXPECT_NEAR(drifts[0].effect, 10 * std::log(1.01), 1e-9);
}

TEST_F(HistoryFile, ARateThatFallsIsWorse) {
  History history(path_);
  history.add(kKey, "a", "b", "now", verdict(-0.1, "samples_per_s"));
  EXPECT_NEAR(history.points(kKey, "samples_per_s")[1].effect, -std::log(0.9), 1e-9);
  history.add(kKey, "b", "c", "now", verdict(-0.02, "accuracy"));
  EXPECT_NEAR(history.points(kKey, "accuracy")[1].effect, 0.02, 1e-9) << "a difference";
}

TEST_F(HistoryFile, OtherCommandsMachinesAndMetricsAreApart) {
  History history(path_);
  history.add(kKey, "a", "b", "now", verdict(0));
  EXPECT_TRUE(history.points({"profile other.toml", kKey.machine}, "step_p50_s").empty());
  EXPECT_TRUE(history.points({kKey.config, "another"}, "step_p50_s").empty());
  EXPECT_TRUE(history.points(kKey, "loss").empty());
}

TEST_F(HistoryFile, WhatHasNoIntervalIsLeftOut) {
  CompareVerdict open = verdict(0);
  open.metrics[0].interval->high = std::numeric_limits<double>::infinity();
  open.metrics.push_back({.rule = rule_of("loss", {}), .change = MetricChange::missing});
  History history(path_);
  history.add(kKey, "a", "b", "now", open);
  EXPECT_EQ(history.comparisons(), 1);
  EXPECT_TRUE(history.points(kKey, "step_p50_s").empty());
}

TEST_F(HistoryFile, HostileNamesAreValuesAndNoSql) {
  const std::string name = "x'); DROP TABLE metric; --";
  History history(path_);
  history.add(kKey, name, "b'", "now", verdict(0, name));
  EXPECT_EQ(history.points(kKey, name).front().label, name);
}

TEST_F(HistoryFile, AFileThatIsNoneIsRefusedAndStaysAsItIs) {
  std::ofstream(path_) << "somebody's notes\n";
  EXPECT_THAT(refusal(), HasSubstr("history.db: file is not a database"));
  std::ifstream file(path_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "somebody's notes\n");
}

TEST_F(HistoryFile, SomebodyElsesDatabaseIsRefused) {
  run_sql("CREATE TABLE songs (name TEXT)");
  EXPECT_THAT(refusal(), HasSubstr("no history of headrace compare"));
}

TEST_F(HistoryFile, AnotherVersionIsRefusedByNumber) {
  { const History history(path_); }
  run_sql("PRAGMA user_version = 2");
  EXPECT_THAT(refusal(), HasSubstr("has version 2, wanted 1"));
}

TEST_F(HistoryFile, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(error_of(ErrorCode::io, [&] { History history(temporary_.path() / "none" / "a.db"); }),
              HasSubstr("none/a.db"));
}

}  // namespace
}  // namespace headrace
