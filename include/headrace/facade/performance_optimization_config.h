// What of performance optimization takes part in training, under the name of the Python package
// performance_optimization.
#pragma once

#include <headrace/error.h>
#include <headrace/facade/performance_config.h>

#include <optional>
#include <span>
#include <vector>

namespace headrace::facade {

// A plain value that becomes a PerformanceConfig:
//
//   hr::facade::PerformanceOptimizer optimizer(config.performance_config());
//   ...
//   config.report(optimizer.get_optimization_status());
struct PerformanceOptimizationConfig {
  bool enable_performance_optimization = true;  // false: as if there were no such configuration.
  // basic, advanced or ultra: what enable_gradient_checkpointing and enable_flash_attention are where nobody has said
  // them. advanced and ultra have the first, ultra has the second.
  OptimizationLevel optimization_level = OptimizationLevel::advanced;
  bool integrate_with_stability = true;  // Results of a NumericalStabilityManager have performance_metrics.
  // One setting by three names; none given: on.
  std::optional<bool> enable_mixed_precision{};
  std::optional<bool> mixed_precision{};
  std::optional<bool> enable_amp{};
  bool enable_model_compilation = true;    // enable_compile of a PerformanceConfig.
  bool enable_memory_optimization = true;  // Its enable_memory_format_optimization.
  std::optional<bool> enable_gradient_checkpointing{};
  std::optional<bool> enable_flash_attention{};

  // The level custom with what is asked for; with nothing where enable_performance_optimization is false.
  // Error{invalid_argument}: the level is custom, or two names of mixed precision differ.
  PerformanceConfig performance_config() const;
  // By setting requested, applied ("none": it is not) and why not. `status`: rows of a PerformanceOptimizer's
  // get_optimization_status() or a ModelOptimizer's report(); what is not among them was not set up. A checkpointing
  // and a flash attention that are left to the level have no row. Errors as performance_config()'s.
  std::vector<Applied> report(std::span<const Applied> status = {}) const;
};

}  // namespace headrace::facade
