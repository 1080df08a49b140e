#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/optimized_optimizer.h>
#include <headrace/facade/performance_optimizer.h>
#include <headrace/facade/profile_operation.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "facade/regression.h"
#include "torch/tensor/compute.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr const char* kNotBuilt = "unavailable: not built yet";

// A network of the same weights each time, and data for it.
struct Job {
  explicit Job(std::int64_t samples = 8)
      : loader(std::make_shared<tiny::Images>(samples), tiny::batches_of(4), /*seed=*/1, /*training=*/true) {}

  ModelState model() const { return network->state(); }
  Optimizer optimizer() const {
    return create_optimized_optimizer(model(), {.model_config = {.learning_rate = 0.001}});
  }
  Forward forward() const {
    return [of = network.get()](const TensorBatch& batch) { return (*of)(batch); };
  }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : model().parameters) all.push_back(parameter.detach().clone());
    return all;
  }

  std::unique_ptr<tiny::Cnn> network = made();
  Loader loader;

 private:
  static std::unique_ptr<tiny::Cnn> made() {
    at::manual_seed(1);
    return std::make_unique<tiny::Cnn>();
  }
};

json summary_of(const PerformanceOptimizer& optimizer) {
  return json::parse(optimizer.get_performance_summary());
}

TEST(PerformanceOptimizer, TheExampleOfASummaryHasItsFourKeysUntilMetricsAreCleared) {  // EX-001-15
  Job job;
  Optimizer of_model = job.optimizer();
  PerformanceOptimizer optimizer(OptimizationLevel::basic);
  optimizer.optimize_training_loop(job.model(), job.loader, of_model, job.forward(), /*num_epochs=*/2);
  optimizer.batch_optimizer() = BatchOptimizer(/*initial_batch_size=*/2, /*max_batch_size=*/4);
  const std::int64_t size = optimizer.batch_optimizer().optimize_batch_size(job.model(), job.forward(), job.loader);
  { const auto scope = optimizer.profiler().profile("scope"); }
  const json summary = summary_of(optimizer);
  EXPECT_EQ(summary["cache_stats"], kNotBuilt);
  EXPECT_EQ(summary["memory_trends"], kNotBuilt);
  EXPECT_EQ(summary["profiling_summary"]["total_operations"], 1);
  EXPECT_EQ(summary["batch_optimization"]["status"], "applied");
  EXPECT_EQ(summary["batch_optimization"]["batch_size"], size);
  EXPECT_FALSE(summary["batch_optimization"]["probes"].empty());
  EXPECT_EQ(summary["features"]["batch_size_optimization"]["status"], "applied");
  EXPECT_THAT(summary["training_loops"], SizeIs(1));

  optimizer.clear_metrics();
  const json cleared = summary_of(optimizer);
  EXPECT_THAT(cleared["training_loops"], SizeIs(0));
  EXPECT_THAT(cleared["batch_optimization"]["probes"], SizeIs(0));
  EXPECT_EQ(cleared["profiling_summary"]["total_operations"], 0);
  EXPECT_EQ(cleared["config"], summary["config"]);
}

TEST(PerformanceOptimizer, TheExampleOfAFailureInAScopeTellsOfItUpToWhatIsNotBuilt) {  // EX-001-16
  PerformanceOptimizer optimizer;
  std::string logged;
  try {
    const auto scope = optimizer.profiler().profile("critical_operation");
    throw std::runtime_error("mine");
  } catch (const std::runtime_error& error) {
    logged = std::string(error.what()) + ": " + optimizer.get_performance_summary();
    EXPECT_EQ(optimizer.memory_optimizer().status, kNotBuilt);
  }
  const json summary = json::parse(logged.substr(logged.find('{')));
  EXPECT_EQ(summary["profiling_summary"]["operations"][0]["name"], "critical_operation");
  EXPECT_TRUE(optimizer.profiler().tree().at(0).failed);
}

TEST(PerformanceOptimizer, TheExampleOfMemoryTrendsRunsUpToWhatIsNotBuilt) {  // EX-001-21
  const PerformanceOptimizer optimizer;
  const auto train_model = profile_operation("model_training", [] { return std::string("trained"); });
  EXPECT_EQ(train_model(), "trained");
  EXPECT_EQ(optimizer.memory_optimizer().status, kNotBuilt);
  EXPECT_EQ(summary_of(optimizer)["memory_trends"], kNotBuilt);
}

TEST(PerformanceOptimizer, TheExampleOfDebugInformationHasTheKeysThatPythonsHas) {  // EX-001-27
  const PerformanceOptimizer optimizer;
  const ordered_json summary = ordered_json::parse(optimizer.get_performance_summary());
  std::vector<std::string> keys;
  for (const auto& [key, value] : summary.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("config", "features", "compilation", "hardware", "live_tuning", "training_loops",
                                "profiling_summary", "performance_monitor", "batch_optimization", "cache_stats",
                                "memory_trends"));
  EXPECT_EQ(optimizer.cache().status, kNotBuilt);
  EXPECT_EQ(optimizer.memory_optimizer().status, kNotBuilt);
  EXPECT_TRUE(summary["performance_monitor"].is_null());
  EXPECT_TRUE(summary["compilation"].is_null());
  EXPECT_GE(summary["hardware"]["usable_cores"], 1);
}

TEST(PerformanceOptimizer, TheExampleOfAPipelineSetsUpTellsEachComponentAndTrainsNothing) {  // EX-002-09
  Job job;
  const std::vector<at::Tensor> before = job.copies();
  int forwards = 0;
  const auto forward = [&, of = job.forward()](const TensorBatch& batch) {
    ++forwards;
    return of(batch);
  };
  const PerformanceConfig config({.optimization_level = OptimizationLevel::basic, .num_workers = 1});
  PerformanceOptimizer performance_optimizer = create_performance_optimizer(config);
  TrainingPipeline pipeline =
      performance_optimizer.optimize_training_pipeline(job.model(), job.loader, job.optimizer(), forward);

  EXPECT_EQ(forwards, 0);
  expect_same(job.copies(), before);
  EXPECT_EQ(job.loader.applied_num_workers().requested, "1");
  std::vector<std::string> components;
  std::size_t told = 0;
  for (const auto& [component, rows] : pipeline.features) {
    components.push_back(component);
    told += rows.size();
    for (const Applied& row : rows) EXPECT_EQ(row.applied == "none", !row.reason.empty()) << row.key;
  }
  EXPECT_THAT(components, ElementsAre("data", "batch", "model", "training", "memory", "profiling"));
  EXPECT_EQ(told, performance_setting_names().size() - 2);
  EXPECT_EQ(pipeline.features[0].second[0].key, "num_workers");
  EXPECT_EQ(pipeline.features[0].second[0].reason, "");
  EXPECT_EQ(pipeline.live_tuning.applied, "none");
  EXPECT_THAT(pipeline.live_tuning.reason, HasSubstr("LiveLoop"));
  EXPECT_EQ(summary_of(performance_optimizer)["live_tuning"]["reason"], pipeline.live_tuning.reason);

  pipeline.loop.train_epoch(job.loader);  // The loop is the caller's.
  EXPECT_EQ(forwards, 2);
  EXPECT_FALSE(job.copies()[0].equal(before[0]));
}

TEST(PerformanceOptimizer, TheExampleOfAStatusHasItsTwoKeys) {  // EX-002-10
  Job job;
  Optimizer of_model = job.optimizer();
  PerformanceOptimizer performance_optimizer = create_performance_optimizer(OptimizationLevel::advanced);
  EXPECT_EQ(performance_optimizer.config(), create_performance_optimizer().config());
  performance_optimizer.optimize_training_loop(job.model(), job.loader, of_model, job.forward(), /*num_epochs=*/1);
  const json config = summary_of(performance_optimizer)["config"];
  EXPECT_EQ(config["mixed_precision"], false);  // Asked for, and not in force on a CPU.
  EXPECT_EQ(config["enable_amp"], true);
  EXPECT_EQ(config["compile_enabled"], false);
  const json features = summary_of(performance_optimizer)["features"];
  for (const char* name : {"enable_amp", "enable_compile"}) {
    EXPECT_EQ(features[name]["status"], "not applied") << name;
    EXPECT_NE(features[name]["reason"], "") << name;
  }
  EXPECT_EQ(features["enable_memory_format_optimization"]["status"], "applied");
  EXPECT_EQ(features["enable_flash_attention"]["status"], "");  // Not asked for.
}

TEST(PerformanceOptimizer, TheExampleOfAMonitorRunsUpToWhatIsNotBuilt) {  // EX-002-13
  PerformanceOptimizer performance_optimizer = create_performance_optimizer();
  EXPECT_THAT(performance_optimizer.get_optimization_status(), SizeIs(performance_setting_names().size()));
  EXPECT_EQ(performance_optimizer.memory_manager().status, kNotBuilt);
  PerformanceMonitor& monitor = performance_optimizer.performance_monitor();
  EXPECT_EQ(&monitor, &performance_optimizer.performance_monitor());
  const json performance_summary = json::parse(monitor.get_performance_summary());
  EXPECT_TRUE(performance_summary["average_step_time"].is_null());
  EXPECT_EQ(summary_of(performance_optimizer)["performance_monitor"], performance_summary);
}

TEST(PerformanceOptimizer, TheExampleOfAFlagSaysThatItCanBeHad) {  // EX-002-16
  static_assert(PERFORMANCE_OPTIMIZATION_AVAILABLE);
  if (PERFORMANCE_OPTIMIZATION_AVAILABLE) {
    EXPECT_EQ(create_performance_optimizer().config(), PerformanceConfig(OptimizationLevel::advanced));
  }
}

TEST(PerformanceOptimizer, ScopesAreRecordedAsTheConfigurationSays) {
  for (const bool is_on : {true, false}) {
    PerformanceOptimizer optimizer{PerformanceConfig({.enable_profiling = is_on})};
    { const auto scope = optimizer.profiler().profile("work"); }
    EXPECT_EQ(summary_of(optimizer)["profiling_summary"]["total_operations"], is_on ? 1 : 0);
    EXPECT_EQ(summary_of(optimizer)["live_tuning"]["reason"] == "enable_profiling is false", !is_on);
  }
}

TEST(PerformanceOptimizer, HardwareSettingsAreReadBackAndUndoneByCleanupAndAtItsEnd) {
  const auto variable = [] {
    const char* const found = std::getenv("OMP_NUM_THREADS");
    return found == nullptr ? std::nullopt : std::optional<std::string>(found);
  };
  const auto variable_before = variable();
  const std::int64_t threads_before = compute_threads();
  PerformanceOptimizer optimizer;
  const std::vector<Applied> rows = optimizer.apply_hardware_settings();
  ASSERT_EQ(rows[0].key, "compute_threads");
  EXPECT_EQ(rows[0].applied, std::to_string(compute_threads()));
  EXPECT_TRUE(variable().has_value());
  EXPECT_EQ(summary_of(optimizer)["hardware"]["settings"]["compute_threads"]["applied"], rows[0].applied);
  optimizer.cleanup();
  EXPECT_EQ(compute_threads(), threads_before);
  EXPECT_EQ(variable(), variable_before);
  EXPECT_THAT(summary_of(optimizer)["hardware"]["settings"], SizeIs(0));
  optimizer.cleanup();
  {
    PerformanceOptimizer moved = [] {
      PerformanceOptimizer made;
      made.apply_hardware_settings();
      return made;
    }();
    EXPECT_TRUE(variable().has_value());
  }
  EXPECT_EQ(variable(), variable_before);
}

}  // namespace
}  // namespace headrace::facade
