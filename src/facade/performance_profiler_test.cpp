#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/performance_profiler.h>
#include <headrace/facade/profile_operation.h>
#include <headrace/loader.h>
#include <headrace/trace.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"
#include "torch/train/loop.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> names_of(const std::vector<Operation>& operations) {
  std::vector<std::string> names;
  for (const Operation& one : operations) names.push_back(one.name);
  return names;
}

// A profiler whose clock stands still until it is moved.
struct Timed {
  std::shared_ptr<double> now = std::make_shared<double>(0);
  PerformanceProfiler profiler{true, false, [time = now] { return *time; }};

  void batch(std::int64_t batch_size, double seconds, double forward, double backward, double optimizer) {
    profiler.start_batch_timer();
    *now += seconds;
    profiler.record_batch_metrics(batch_size, forward, backward, optimizer);
  }
};

TEST(PerformanceProfiler, TheExampleOfAProfiledTrainingStepHasASummary) {  // EX-001-07
  Regression regression;
  Optimizer optimizer = regression.descent();
  PerformanceProfiler profiler;
  {
    const auto scope = profiler.profile("training_step");
    regression.loss(batches(1)[0]).backward();
    optimizer.step(0.05);
  }
  const ProfilingSummary summary = profiler.get_profile_summary();
  EXPECT_EQ(summary.times.total_operations, 1);
  EXPECT_GT(summary.times.total_duration_s, 0);
  const json told = json::parse(summary.to_json());
  EXPECT_EQ(told["total_operations"], 1);
  EXPECT_EQ(told["total_duration"], summary.times.total_duration_s);
  EXPECT_EQ(told["operations"][0]["name"], "training_step");
}

TEST(PerformanceProfiler, TheExampleOfAnOperationIsRecordedUnderItsNameAndGivesWhatItGave) {  // EX-001-10
  const auto preprocess = profile_operation("data_preprocessing", [](int value, std::unique_ptr<int> more) {
    if (value < 0) throw std::runtime_error("mine");
    return value + *more;
  });
  Trace trace;
  EXPECT_EQ(preprocess(1, std::make_unique<int>(2)), 3);
  EXPECT_THROW(preprocess(-1, nullptr), std::runtime_error);
  const ProfileSummary summary = get_profile_summary(trace.stop());
  ASSERT_THAT(summary.operations, SizeIs(1));
  EXPECT_EQ(summary.operations[0].name, "data_preprocessing");
  EXPECT_EQ(summary.operations[0].count, 2);
  EXPECT_EQ(&operation_name("data_preprocessing"), &operation_name(std::string("data_preprocessing")));
}

TEST(PerformanceProfiler, TheExampleOfBatchMetricsGivesExactSeriesAndAReport) {  // EX-004-12
  Timed timed;
  timed.batch(32, 0.5, 0.0625, 0.125, 0.03125);
  timed.batch(32, 0.25, 0.0625, 0.125, 0.03125);
  const auto& metrics = timed.profiler.metrics();
  EXPECT_THAT(metrics.at("training_speed"), ElementsAre(64.0, 128.0));
  EXPECT_THAT(metrics.at("data_loading_time"), ElementsAre(0.28125, 0.03125));
  const PerformanceReport report = timed.profiler.get_performance_report();
  EXPECT_EQ(report.total_training_time, 0.75);
  EXPECT_EQ(report.average_training_speed, 96);
  EXPECT_EQ(report.peak_training_speed, 128);
  EXPECT_EQ(report.time_breakdown.data_loading, 0.15625);
  EXPECT_EQ(report.time_breakdown.forward_pass, 0.0625);
  EXPECT_EQ(report.time_breakdown.backward_pass, 0.125);
  EXPECT_EQ(report.time_breakdown.optimizer, 0.03125);
  EXPECT_EQ(json::parse(report.to_json())["time_breakdown"]["data_loading"], 0.15625);
  const std::vector<Finding> found = timed.profiler.identify_bottlenecks();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].code, "data_loading_slow");
  EXPECT_THAT(timed.profiler.identify_bottlenecks({.data_loading_ratio = 0.75}), IsEmpty());
}

TEST(PerformanceProfiler, ScopesNestToATreeAndNestedTimeCountsOnce) {
  PerformanceProfiler profiler;
  {
    const auto outer = profiler.profile("outer");
    { const auto inner = profiler.profile("inner"); }
    { const auto inner = profiler.profile("inner"); }
  }
  const auto after = profiler.profile("open");  // Not over yet.
  const std::vector<Operation> tree = profiler.tree();
  ASSERT_THAT(names_of(tree), ElementsAre("outer"));
  EXPECT_THAT(names_of(tree[0].children), ElementsAre("inner", "inner"));
  const ProfilingSummary summary = profiler.get_profile_summary();
  EXPECT_EQ(summary.times.total_operations, 3);
  EXPECT_NEAR(summary.times.total_duration_s, tree[0].seconds, 1e-9);
}

TEST(PerformanceProfiler, AnExceptionClosesAScopeMarksItAndPassesThrough) {
  PerformanceProfiler profiler;
  const auto fail_within = [&] {
    const auto scope = profiler.profile("fails");
    throw std::runtime_error("mine");
  };
  EXPECT_THROW(fail_within(), std::runtime_error);
  { const auto scope = profiler.profile("after"); }
  const std::vector<Operation> tree = profiler.tree();
  ASSERT_THAT(names_of(tree), ElementsAre("fails", "after"));
  EXPECT_TRUE(tree[0].failed);
  EXPECT_FALSE(tree[1].failed);
}

TEST(PerformanceProfiler, ScopesOfThreadsLieBesideEachOtherAndATraceHasThemToo) {
  PerformanceProfiler profiler;
  Trace trace;
  {
    const auto scope = profiler.profile("main");
    std::thread([&] { const auto other = profiler.profile("thread"); }).join();
  }
  EXPECT_THAT(names_of(profiler.tree()), ElementsAre("main", "thread"));
  EXPECT_EQ(get_profile_summary(trace.stop()).total_operations, 2);
}

TEST(PerformanceProfiler, ProfilingThatIsOffRecordsNothing) {
  PerformanceProfiler profiler(/*enable_profiling=*/false);
  Trace trace;
  { const auto scope = profiler.profile("a"); }
  EXPECT_EQ(profiler.get_profile_summary().times.total_operations, 0);
  EXPECT_THAT(trace.stop().events, IsEmpty());
}

TEST(PerformanceProfiler, AScopeTellsWhatItKeptAndTheMostItHeld) {
  PerformanceProfiler profiler(/*enable_profiling=*/true, /*enable_memory_profiling=*/true);
  at::Tensor kept;
  {
    const auto scope = profiler.profile("main");
    const at::Tensor held = at::empty({2'000'000}, at::kByte);
    kept = at::empty({500'000}, at::kByte);
  }
  ProfilingSummary summary = profiler.get_profile_summary();
  EXPECT_EQ(summary.memory_reason, "");
  EXPECT_EQ(summary.memory.at("main").net_bytes, 500'000);
  EXPECT_EQ(summary.memory.at("main").peak_bytes, 2'500'000);

  PerformanceProfiler without;
  { const auto scope = without.profile("main"); }
  summary = without.get_profile_summary();
  EXPECT_EQ(summary.memory.at("main").net_bytes, std::nullopt);
  EXPECT_EQ(summary.memory_reason, "enable_memory_profiling is off");
  EXPECT_TRUE(json::parse(summary.to_json())["memory"]["main"]["peak_bytes"].is_null());
}

TEST(PerformanceProfiler, AnEmptyOneHasAValidEmptyReportAndAClearedOneToo) {
  Timed timed;
  timed.batch(8, 1, 0.1, 0.1, 0.1);
  { const auto scope = timed.profiler.profile("a"); }
  timed.profiler.clear();
  const PerformanceReport report = timed.profiler.get_performance_report();
  EXPECT_EQ(report.total_training_time, 0);
  EXPECT_EQ(report.peak_training_speed, 0);
  EXPECT_EQ(report.recorded_batches, 0);
  EXPECT_FALSE(report.memory_available);
  EXPECT_THAT(timed.profiler.identify_bottlenecks(), IsEmpty());
  EXPECT_THAT(timed.profiler.tree(), IsEmpty());
  EXPECT_EQ(timed.profiler.get_profile_summary().dropped_operations, 0);
}

TEST(PerformanceProfiler, NamesABatchThatWasNotStartedAndNumbersThatCannotBe) {
  Timed timed;
  const auto refusal = [&](std::int64_t batch_size, double forward, double backward) {
    return error_of(ErrorCode::invalid_argument,
                    [&] { timed.profiler.record_batch_metrics(batch_size, forward, backward, 0.1); });
  };
  EXPECT_THAT(refusal(8, 0.1, 0.1), HasSubstr("wanted start_batch_timer() before each batch"));
  timed.profiler.start_batch_timer();
  EXPECT_THAT(refusal(0, 0.1, 0.1), HasSubstr("batch_size: wanted at least 1, found 0"));
  EXPECT_THAT(refusal(8, -1, 0.1), HasSubstr("forward_time: wanted seconds, at least 0, found -1"));
  EXPECT_THAT(refusal(8, 0.1, std::numeric_limits<double>::quiet_NaN()), HasSubstr("backward_time: wanted seconds"));
  EXPECT_THAT(refusal(8, 0.1, 0.1), HasSubstr("wanted a batch that takes time, found 0 s"));
  *timed.now += 1;
  timed.profiler.record_batch_metrics(8, 0.1, 0.1, 0.1);
  EXPECT_THAT(refusal(8, 0.1, 0.1), HasSubstr("found none since the last one"));
  EXPECT_THAT(timed.profiler.metrics().at("training_speed"), ElementsAre(8.0));
}

TEST(PerformanceProfiler, TakesTheSixSeriesThatATraceOfATrainerHas) {
  const tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(12), tiny::batches_of(4), /*seed=*/1, /*training=*/true);
  Trace trace;
  Epoch epoch = loader.next_epoch();
  run_steps(*training.trainer, epoch, /*batches_max=*/3);
  const TimeSplit split = split_time(trace.stop());
  PerformanceProfiler profiler;
  profiler.take_metrics(split, /*samples_per_step=*/4, {2'000'000'000, 2'000'000'000, 2'000'000'000});
  for (const auto& [name, values] : profiler.metrics()) EXPECT_THAT(values, SizeIs(3)) << name;
  const PerformanceReport report = profiler.get_performance_report();
  EXPECT_GT(report.time_breakdown.forward_pass, 0);
  EXPECT_EQ(report.average_memory_usage, 2);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { profiler.take_metrics(split, 0); }), HasSubstr("samples"));
}

}  // namespace
}  // namespace headrace::facade
