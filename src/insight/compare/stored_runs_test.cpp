#include "insight/compare/stored_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

StoredRuns runs(const std::string& label, const std::vector<double>& seconds) {
  StoredRuns stored{.label = label,
                    .written = "2026-11-27",
                    .build = "0.1.0",
                    .config = "recipe",
                    .machine = {{"CPU", "one"}, {"Cores", "2"}},
                    .runs = {}};
  for (const double value : seconds) stored.runs.push_back({.metrics = {{"step_p50_s", value}}});
  return stored;
}

const std::vector<double> kBefore{1.000, 1.001, 1.002, 1.003, 1.004, 1.005};
const std::vector<double> kAfter{1.100, 1.101, 1.102, 1.103, 1.104, 1.105};

class StoredFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  static std::string training(double loss) {
    return "{\"format\": \"headrace-train\", \"version\": 1, \"environment\": {\"CPU\": \"one\"}, \"training\": "
           "{\"seconds\": 9, \"epochs\": [{\"loss\": " +
           std::to_string(loss) + "}]}}";
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(StoredFiles, ABaselineIsReadBackAsItWasWritten) {
  const StoredRuns before = runs("a", kBefore);
  write_stored_runs(folder_ / "old.json", before);
  const StoredRuns again = read_stored_runs(folder_ / "old.json");
  EXPECT_EQ(again.label, "a");
  EXPECT_EQ(again.written, "2026-11-27");
  EXPECT_EQ(again.build, "0.1.0");
  EXPECT_EQ(again.config, "recipe");
  EXPECT_EQ(again.machine, before.machine);
  ASSERT_EQ(again.runs.size(), kBefore.size());
  EXPECT_EQ(again.runs.back().metrics, before.runs.back().metrics);
}

TEST_F(StoredFiles, ABaselineHasAVersionThatIsLookedAt) {
  write_stored_runs(folder_ / "old.json", runs("a", kBefore));
  std::ifstream file(folder_ / "old.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("\"format\": \"headrace-measurements\",\n  \"version\": 1"));
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  write("old.json", text);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { read_stored_runs(folder_ / "old.json"); }),
              HasSubstr("old.json has version 2, wanted 1"));
}

TEST_F(StoredFiles, AFolderOfRunsIsReadInOrderAndLinksAreNotRunsOfTheirOwn) {
  write("runs/2/result.json", training(2));
  write("runs/1/result.json", training(1));
  write("runs/notes/a.txt", "no run");
  fs::create_directory_symlink("2", folder_ / "runs" / "latest");
  EXPECT_TRUE(is_stored(folder_ / "runs"));
  EXPECT_FALSE(is_stored(folder_ / "runs" / "notes"));
  EXPECT_TRUE(is_stored(folder_ / "runs" / "1"));
  const StoredRuns stored = read_stored_runs(folder_ / "runs");
  ASSERT_EQ(stored.runs.size(), 2);
  EXPECT_EQ(stored.runs[0].metrics.at("loss"), 1);
  EXPECT_EQ(stored.runs[1].metrics.at("loss"), 2);
  EXPECT_EQ(stored.machine.front().second, "one");
}

TEST_F(StoredFiles, RunsOfTwoMachinesAreNoOneArm) {
  write("runs/1/result.json", training(1));
  std::string other = training(2);
  other.replace(other.find("one"), 3, "two");
  write("runs/2/result.json", other);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { read_stored_runs(folder_ / "runs"); }),
              HasSubstr("was measured on another machine"));
}

TEST_F(StoredFiles, WhatIsNoRunIsNamed) {
  write("a.json", "[1]");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { read_stored_runs(folder_ / "a.json"); }), HasSubstr("a.json"));
  write("b.json", "{\"format\": \"headrace-measurements\", \"version\": 1, \"label\": 3}");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { read_stored_runs(folder_ / "b.json"); }),
              HasSubstr("no text label"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { read_stored_runs(folder_ / "empty"); }), HasSubstr("empty"));
}

TEST(JudgeStored, ATenthSlowerIsRegressedAndTheVerdictCallsItselfWeak) {
  const CompareVerdict verdict = judge_stored(runs("a", kBefore), runs("b", kAfter), {});
  EXPECT_EQ(verdict.metrics.front().change, MetricChange::regressed);
  EXPECT_NEAR(verdict.metrics.front().interval->median, 0.1, 0.002);
  EXPECT_EQ(verdict.pairs, 0);
  EXPECT_THAT(verdict.remarks.back(), HasSubstr("weak: these runs were not taken in turns"));
  EXPECT_EQ(judge_stored(runs("b", kAfter), runs("a", kBefore), {}).metrics.front().change, MetricChange::improved);
}

TEST(JudgeStored, TheSameIsEquivalentAndNoiseIsInconclusive) {
  EXPECT_EQ(judge_stored(runs("a", kBefore), runs("b", kBefore), {}).metrics.front().change, MetricChange::equivalent);
  const std::vector<double> noise{1, 1.2, 0.9, 1.1, 0.8, 1.05};
  EXPECT_EQ(judge_stored(runs("a", noise), runs("b", noise), {}).metrics.front().change, MetricChange::inconclusive);
}

TEST(JudgeStored, OneRunAndOtherMachinesAreRefused) {
  const auto refusal = [](const StoredRuns& before, const StoredRuns& after) {
    return error_of(ErrorCode::invalid_argument, [&] { judge_stored(before, after, {}); });
  };
  EXPECT_THAT(refusal(runs("a", {1}), runs("b", kAfter)), HasSubstr("a holds 1 run; a verdict on stored runs takes 4"));
  StoredRuns elsewhere = runs("b", kAfter);
  elsewhere.machine[0].second = "other";
  EXPECT_THAT(refusal(runs("a", kBefore), elsewhere), HasSubstr("OLD was measured on one, 2, NEW on other, 2"));
  StoredRuns others = runs("b", kAfter);
  for (RunFigures& run : others.runs) run.metrics = {{"loss", 1}};
  EXPECT_THAT(refusal(runs("a", kBefore), others), HasSubstr("no metric in common"));
}

TEST(JudgeStored, AMetricThatTheNewRunsLackIsAFailure) {
  StoredRuns before = runs("a", kBefore), after = runs("b", kBefore);
  for (RunFigures& run : before.runs) run.metrics["accuracy"] = 0.9;
  const CompareVerdict verdict = judge_stored(before, after, {});
  EXPECT_TRUE(verdict.is_failure());
  EXPECT_EQ(verdict.metrics.front().rule.name, "accuracy");
  EXPECT_EQ(verdict.metrics.front().change, MetricChange::missing);
}

TEST(JudgeStored, ACacheThatIsSwitchedOffIsARemarkAndNoFailure) {
  StoredRuns before = runs("a", kBefore), after = runs("b", kBefore);
  for (RunFigures& run : before.runs) run.metrics["hit_rate"] = 0.8;
  for (RunFigures& run : after.runs) run.not_applicable["hit_rate"] = "looked for no sample in a cache";
  const CompareVerdict verdict = judge_stored(before, after, {});
  EXPECT_FALSE(verdict.is_failure());
  EXPECT_EQ(verdict.metrics.size(), 1);
  EXPECT_THAT(verdict.remarks.front(), HasSubstr("hit_rate is not compared: NEW looked for no sample"));
}

TEST(JudgeStored, RunsThatDoNotTellTheirMachineSaySo) {
  StoredRuns before = runs("a", kBefore), after = runs("b", kBefore);
  before.machine = after.machine = {};
  EXPECT_THAT(judge_stored(before, after, {}).remarks.front(), HasSubstr("do not tell their machine"));
}

}  // namespace
}  // namespace headrace
