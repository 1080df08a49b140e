// What a PerformanceOptimizer tells of itself as JSON.
#pragma once

#include <headrace/batch_planner.h>
#include <headrace/error.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_profiler.h>
#include <headrace/facade/training_optimizer.h>

#include <optional>
#include <string>
#include <vector>

namespace headrace::facade {

struct PerformanceFacts {
  PerformanceConfig config;
  std::vector<Applied> status{};  // A row a setting.
  bool compile_enabled = false;
  std::vector<TrainingResults> loops{};
  std::optional<BatchPlan> batch_plan{};
  std::vector<Applied> hardware{};
  ProfilingSummary profiling{};
  std::optional<std::string> monitor{};  // JSON; nullopt: nobody asked for it.
  std::string not_built{};               // What stands in the place of parts that are not.
};

std::string performance_summary(const PerformanceFacts& facts);  // On several lines.

// Why nothing is tuned while a loop of this configuration runs.
Applied live_tuning_row(const PerformanceConfig& config);

}  // namespace headrace::facade
