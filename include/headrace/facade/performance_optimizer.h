// One object that carries out of a PerformanceConfig what C++ has, and tells of the rest why not, under the names of
// the Python package performance_optimization.
#pragma once

#include <headrace/error.h>
#include <headrace/facade/batch_size.h>
#include <headrace/facade/hardware.h>
#include <headrace/facade/model_optimizer.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_monitor.h>
#include <headrace/facade/performance_profiler.h>
#include <headrace/facade/training_optimizer.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace::facade {

// A program that has this header has all that is below. Where it may be missing, __has_include() tells.
inline constexpr bool PERFORMANCE_OPTIMIZATION_AVAILABLE = true;

// In the place of a part that is not built yet.
struct NotBuilt {
  std::string status = "unavailable: not built yet";
};

struct TrainingPipeline {
  TrainingLoop loop;  // Of which nothing was trained yet.
  // By component (data, batch, model, training, memory, profiling) the rows of get_optimization_status().
  std::vector<std::pair<std::string, std::vector<Applied>>> features{};
  Applied live_tuning{};  // Not applied, and why.
};

// Not thread-safe; for the thread that trains. Its end is a cleanup().
class PerformanceOptimizer {
 public:
  explicit PerformanceOptimizer(const PerformanceConfig& config = PerformanceConfig());
  explicit PerformanceOptimizer(OptimizationLevel level);
  ~PerformanceOptimizer();
  PerformanceOptimizer(PerformanceOptimizer&& other) noexcept;

  const PerformanceConfig& config() const { return config_; }
  ModelOptimizer& model_optimizer() { return model_optimizer_; }
  const ModelOptimizer& model_optimizer() const { return model_optimizer_; }
  const TrainingOptimizer& training_optimizer() const { return training_optimizer_; }
  BatchOptimizer& batch_optimizer() { return batch_optimizer_; }
  PerformanceMonitor& performance_monitor();  // Made when it is first asked for, as the next one.
  // Records as enable_profiling and enable_memory_profiling say; its scopes are the summary's profiling_summary.
  PerformanceProfiler& profiler();
  NotBuilt cache() const { return {}; }
  NotBuilt memory_optimizer() const { return {}; }
  NotBuilt memory_manager() const { return {}; }

  // Those of optimize_cpu_settings() and optimize_cuda_settings(), as these return them. cleanup() undoes them.
  std::vector<Applied> apply_hardware_settings();

  // A loop over a model that is set up for it; num_workers becomes the loader's where somebody said it.
  TrainingLoop begin_loop(ModelState model, Optimizer optimizer, Forward forward, Loader& loader);
  // TrainingOptimizer::train() of a model and a loader that are set up so.
  TrainingResults optimize_training_loop(const ModelState& model, Loader& loader, Optimizer& optimizer,
                                         const Forward& forward, std::int64_t num_epochs = 10);
  // Sets model and loader up, tells of each component, and trains nothing: the loop is the caller's. Nothing is tuned
  // while it runs: the live tuner knows loops of recipes, and what is handed to it as a headrace::LiveLoop.
  TrainingPipeline optimize_training_pipeline(ModelState model, Loader& loader, Optimizer optimizer, Forward forward);

  // By setting requested, applied ("none": it is not) and why not, of the last loop. Each setting once.
  std::vector<Applied> get_optimization_status() const;
  // JSON with the keys that Python's has: config (all settings, and mixed_precision and compile_enabled as they are in
  // force), features, compilation, hardware, live_tuning, training_loops, profiling_summary, performance_monitor (null
  // before anybody asked for it), batch_optimization; cache_stats and memory_trends, which are not built yet, say so.
  std::string get_performance_summary() const;

  // Forgets what was measured so far of loops, scopes, searches and the monitor's steps. What is set up stays.
  void clear_metrics();
  // Undoes hardware settings, the last first, and closes the monitor, which writes out its files. A loader keeps its
  // workers, the model stays as it was set up. A second call does nothing. An exception comes once all else is undone.
  void cleanup();

 private:
  friend class OptimizedTrainer;
  void set_up(Loader& loader);

  PerformanceConfig config_;
  ModelOptimizer model_optimizer_;
  TrainingOptimizer training_optimizer_;
  BatchOptimizer batch_optimizer_{};
  std::unique_ptr<PerformanceMonitor> monitor_;
  std::unique_ptr<PerformanceProfiler> profiler_;
  std::vector<HardwareSettings> hardware_;       // In the order in which they were set.
  std::optional<Applied> num_workers_;           // Of the last loader.
  std::optional<std::vector<Applied>> of_loop_;  // The last loop's report.
  std::vector<TrainingResults> loops_;
};

PerformanceOptimizer create_performance_optimizer(OptimizationLevel level = OptimizationLevel::advanced);
PerformanceOptimizer create_performance_optimizer(const PerformanceConfig& config);

// PerformanceOptimizer(config).optimize_training_loop() of the rest. By default nothing is asked for but the loop, an
// update a batch.
TrainingResults optimize_training_loop(const ModelState& model, Loader& loader, Optimizer& optimizer,
                                       const Forward& forward, std::int64_t num_epochs = 10,
                                       const PerformanceConfig& config = PerformanceConfig(OptimizationLevel::custom));

}  // namespace headrace::facade
