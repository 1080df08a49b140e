// What a NumericalStabilityManager is to do, under the names of the Python package performance_optimization.
#pragma once

#include <headrace/facade/performance_optimization_config.h>
#include <headrace/options/step_guard.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace headrace::facade {

// norm clips the L2 norm of all gradients together, layer that of each parameter's, value each element, adaptive each
// parameter's norm by that of its weights.
enum class ClippingMode { norm, value, layer, adaptive };

struct ClippingConfig {
  ClippingMode mode = ClippingMode::norm;
  double max_grad_norm = 1.0;    // Of norm and layer.
  double clip_grad_value = 1.0;  // Of value.
  double clip_factor = 0.01;     // Of adaptive: times the norm of the weights, which counts as at least 0.001.
};

// What follows where a loss, a gradient or, after the update, a weight is not finite. raise: Error{numerics}. skip: the
// update is left out. replace: what is not finite becomes 0, and the update is left out where the loss is not.
// lower_lr: as skip, with every group's learning rate times lr_factor. rollback: weights, buffers and optimizer state
// of the last good state, while learning rates stay as they are now. Weights that are not finite are an error under
// skip and lower_lr, too, as no later step would be finite. Buffers that a bad forward changed, such as running
// statistics, stay so under every policy but rollback.
struct NanConfig {
  GuardPolicy policy = GuardPolicy::raise;
  std::int64_t max_in_a_row = 10;  // One more without a good step between them is an error under every policy.
  double lr_factor = 0.5;
  std::int64_t keep_every = 1;  // Good steps between two states that are kept to roll back to.
};

// What is false costs nothing.
struct DebugConfig {
  // A NaN that an operator of backward gives, or of a forward within step(), is a fault that names it, also without a
  // NanConfig, as StepGuard does it.
  bool detect_anomaly = false;
  bool gradient_statistics = false;  // A result has the norm of each parameter's gradient.
  // A result has figures of what each operator of a forward within step() gave. Reads the device at each of them.
  bool activation_statistics = false;
  // Tells of each step that is skipped, or has a loss or a norm of gradients that is not finite or more than
  // suspicious_factor times the median of the steps before it, 10 to 50 of them.
  bool log_suspicious_steps = false;
  double suspicious_factor = 10.0;                         // Above 1.
  std::function<void(const std::string& sentence)> log{};  // Empty: a line on stderr.
};

// What is left out is not done.
struct StabilityConfigs {
  std::optional<ClippingConfig> clipping_config{};
  std::optional<NanConfig> nan_config{};
  std::optional<DebugConfig> debug_config{};
  // optimize_model() sets models up by it, a training wrapper takes its mixed precision, and with
  // integrate_with_stability results have performance_metrics.
  std::optional<PerformanceOptimizationConfig> performance_config{};
};

}  // namespace headrace::facade
