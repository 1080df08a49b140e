#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/performance_monitor.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "facade/performance_report.h"

namespace headrace::facade {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

MonitorOptions without_system_figures() {
  MonitorOptions options;
  options.system_interval = std::chrono::nanoseconds(0);
  return options;
}

// A monitor into a folder of its own, whose clock stands still until it is moved.
struct Watched {
  explicit Watched(const char* log_dir = "log")
      : monitor(folder.path() / log_dir, without_system_figures(), [time = now] { return *time; }) {}

  json summary() const { return json::parse(monitor.get_performance_summary()); }

  TemporaryFolder folder{};
  std::shared_ptr<double> now = std::make_shared<double>(0);
  PerformanceMonitor monitor;
};

// The folder in which a program runs, for a scope.
class CurrentFolder {
 public:
  explicit CurrentFolder(const std::filesystem::path& folder) { std::filesystem::current_path(folder); }
  ~CurrentFolder() { std::filesystem::current_path(before_); }
  CurrentFolder(const CurrentFolder&) = delete;
  CurrentFolder& operator=(const CurrentFolder&) = delete;

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST(PerformanceMonitor, TheExampleOfRecordedMetricsWritesEventFilesWhereItSays) {  // EX-002-14
  const TemporaryFolder folder;
  const CurrentFolder here(folder.path());
  PerformanceMonitor performance_monitor;
  performance_monitor.record_metrics(100, {{"training_loss", 0.5}, {"validation_accuracy", 0.9}});
  performance_monitor.close();
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("runs/performance_optimization")) {
    files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 1U);
  EXPECT_THAT(files[0].filename().string(), StartsWith("events.out.tfevents."));
  const std::string content = read_file(files[0], 1 << 20);
  EXPECT_THAT(content, HasSubstr("training_loss"));
  EXPECT_THAT(content, HasSubstr("validation_accuracy"));
  EXPECT_EQ(performance_monitor.get_metrics(100).at("training_loss"), 0.5);
}

TEST(PerformanceMonitor, TheExampleOfASummaryHasTheAverageStepTime) {  // EX-002-13
  Watched watched;
  for (std::int64_t step = 0; step < 3; ++step) {
    watched.monitor.record_metrics(step, {{"loss", 1.0}});
    *watched.now += 0.25;
  }
  EXPECT_EQ(watched.summary()["average_step_time"], 0.25);
  EXPECT_EQ(watched.summary()["total_steps"], 2);
  EXPECT_EQ(watched.monitor.get_metrics(2).at("performance/step_time"), 0.25);
}

TEST(PerformanceMonitor, TheExampleOfAReportNeedsNoArguments) {  // EX-002-15
  Watched watched;
  watched.monitor.record_metrics(1, {{"step_time", 0.25}});
  testing::internal::CaptureStderr();
  const std::string report = watched.monitor.log_performance_report();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), report + "\n");
  for (const char* part : {"steps: 1 in 0.250 s", "average step time: 0.250000 s", "memory: ",
                           "GPU utilization: unavailable", "records: 1 taken, 0 dropped", "tensorboard: "}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(json::parse(watched.monitor.log_performance_report(ReportForm::json))["average_step_time"], 0.25);
  testing::internal::GetCapturedStderr();
}

TEST(PerformanceMonitor, ARecordEachTenthStepStillTellsTheTimeOfOne) {
  Watched watched;
  for (std::int64_t step = 0; step <= 100; step += 10) {
    watched.monitor.record_metrics(step, {});
    *watched.now += 2.5;
  }
  EXPECT_EQ(watched.summary()["total_steps"], 100);
  EXPECT_EQ(watched.monitor.average_step_time(), 0.25);
}

TEST(PerformanceMonitor, BeforeTheFirstStepTheTimeIsUnavailableAndNotZero) {
  const Watched watched;
  EXPECT_EQ(watched.monitor.average_step_time(), std::nullopt);
  const json summary = watched.summary();
  EXPECT_TRUE(summary["average_step_time"].is_null());
  EXPECT_TRUE(summary["step_time"].is_null());
  EXPECT_TRUE(summary["memory"].is_null());
  EXPECT_EQ(summary["gpu"]["reason"], "unavailable: nothing was recorded");
  EXPECT_THAT(performance_report(summary), HasSubstr("average step time: unavailable\n  memory: unavailable"));
}

TEST(PerformanceMonitor, ValuesOfAStepJoinAndWhatIsNotFiniteIsCounted) {
  Watched watched;
  watched.monitor.record_metrics(1, {{"a", 1}, {"step_time", 0.5}});
  watched.monitor.record_metrics(1, {{"b", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_TRUE(watched.monitor.flush());
  const auto found = watched.monitor.get_metrics(1);
  EXPECT_EQ(found.at("a"), 1);
  EXPECT_TRUE(std::isnan(found.at("b")));
  EXPECT_TRUE(watched.monitor.get_metrics(2).empty());
  EXPECT_EQ(watched.summary()["not_finite"], 1);
  EXPECT_EQ(watched.summary()["total_steps"], 1);
}

TEST(PerformanceMonitor, ASlowDownWithinTheRunIsTold) {
  Watched watched;
  for (std::int64_t step = 0; step < 600; ++step) {
    watched.monitor.record_metrics(step, {{"step_time", step < 500 ? 0.02 : 0.024}});
  }
  EXPECT_NEAR(watched.summary()["step_time"]["slowdown"]["ratio"].get<double>(), 1.2, 1e-9);
  EXPECT_THAT(performance_report(watched.summary()), HasSubstr("steps take 1.20 times as long"));
}

TEST(PerformanceMonitor, ClearedCountsBeginAnewAndTheEventFilesStay) {
  Watched watched;
  watched.monitor.record_metrics(1, {{"step_time", 9}});
  watched.monitor.clear_metrics();
  EXPECT_TRUE(watched.monitor.get_metrics(1).empty());
  EXPECT_EQ(watched.monitor.average_step_time(), std::nullopt);
  watched.monitor.record_metrics(2, {{"step_time", 0.5}});
  const json summary = watched.summary();
  EXPECT_EQ(summary["average_step_time"], 0.5);
  EXPECT_EQ(summary["recorded"], 2);
  EXPECT_EQ(summary["sinks"][0]["applied"], (watched.folder.path() / "log").string());
}

TEST(PerformanceMonitor, AFolderThatCannotBeMadeLeavesTheRunAlone) {
  Watched watched("file/log");
  write_file(watched.folder.path() / "file", "a file where a folder would be");
  watched.monitor.record_metrics(1, {{"step_time", 0.5}});
  watched.monitor.close();
  const json summary = watched.summary();  // Stays after the end.
  EXPECT_EQ(summary["average_step_time"], 0.5);
  EXPECT_EQ(summary["sinks"][0]["applied"], "off");
  EXPECT_THAT(summary["sinks"][0]["reason"].get<std::string>(), HasSubstr("file"));
}

TEST(PerformanceMonitor, NamesWhatIsNoMetric) {
  Watched watched;
  const auto refusal = [&](std::int64_t step, const PerformanceMonitor::Metrics& metrics) {
    return error_of(ErrorCode::invalid_argument, [&] { watched.monitor.record_metrics(step, metrics); });
  };
  EXPECT_EQ(refusal(-1, {{"a", 1}}), "facade: record_metrics: step: wanted a whole number of at least 0, found -1");
  EXPECT_EQ(refusal(1, {{"", 1}}), "facade: record_metrics: metrics: wanted names, found an empty one");
  EXPECT_EQ(watched.summary()["recorded"], 0);
}

TEST(PerformanceReport, ShowsTheUseOfEachDevice) {
  const json gpu{{"available", true},
                 {"reason", ""},
                 {"devices", {{"0", {{"utilization", 0.875}}}, {"1", {{"power_watts", 90.0}}}}}};
  const Watched watched;
  json summary = watched.summary();
  summary["gpu"] = gpu;
  EXPECT_THAT(performance_report(summary), HasSubstr("GPU 0 utilization: 88%\n  GPU 1 utilization: unavailable\n"));
}

}  // namespace
}  // namespace headrace::facade
