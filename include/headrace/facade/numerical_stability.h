// Steps with clipping and a guard against numbers that are not finite, under the names of the Python package
// performance_optimization.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/error.h>
#include <headrace/facade/stability_config.h>
#include <headrace/grad_scaler.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/step_guard.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace::facade {

// Of what an operator gave that was called by the forward itself, not by another operator. `mean`, `std` and `abs_max`
// are of what is finite; nullopt: nothing is.
struct ActivationStatistics {
  std::string operation;  // "aten::linear".
  std::optional<double> mean{}, std{}, abs_max{};
  double zeros = 0;             // The share of zeros, 0 to 1.
  std::int64_t not_finite = 0;  // Elements.
};

// nullopt: nobody could measure it.
struct PerformanceMetrics {
  std::optional<double> memory_usage_percent{};  // Resident, of the machine's memory.
  std::optional<double> gpu_memory_mb{};         // MiB of tensors on the first CUDA device.
};

struct StabilityResult {
  double loss = 0;
  bool skipped = true;                      // There was no update, or it was undone.
  std::optional<StepFault> nan_detected{};  // Its batch is the number of the step, from 0.
  std::int64_t nan_count = 0;               // So far.
  std::optional<double> gradient_norm{};    // L2, of all, before clipping; nullopt: there was no update.
  std::optional<double> gradient_norm_clipped{};
  bool clipped = false;
  std::int64_t clip_count = 0;                                   // Steps so far.
  std::vector<std::pair<std::string, double>> gradient_norms{};  // L2 by name, of those that have a gradient.
  std::vector<ActivationStatistics> activation_statistics{};     // In the order of the forward.
  std::optional<PerformanceMetrics> performance_metrics{};       // With integrate_with_stability.
};

struct StabilitySummary {
  std::int64_t steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t nan_count = 0;
  std::int64_t clip_count = 0;
  std::int64_t scaler_overflows = 0;                        // Which the scaler forgives: no NaN.
  std::optional<PerformanceMetrics> performance_metrics{};  // As a result has them.
  // Of the performance configuration, by setting requested, applied ("none": it is not) and why not.
  std::vector<Applied> optimizations{};
};

// For one model and its optimizer. Not thread-safe. What is examined, clipped and updated are the parameters that the
// optimizer steps, at each group's own learning rate. With the policy rollback it holds a copy of all training state.
class NumericalStabilityManager {
 public:
  // Error{invalid_argument}: a limit or count that is not above 0, an lr_factor that is not below 1, a
  // suspicious_factor that is not above 1, and as PerformanceOptimizationConfig::performance_config().
  explicit NumericalStabilityManager(const StabilityConfigs& configs = {});
  ~NumericalStabilityManager();
  NumericalStabilityManager(NumericalStabilityManager&& other) noexcept;
  NumericalStabilityManager& operator=(NumericalStabilityManager&& other) = delete;

  // Backward, clipping and the update, after which gradients are released. Backward is left out where some gradient is
  // other than zero already: whoever ran it has not released them since; of gradients that are all zero, as those
  // behind a dead ReLU, it is run again. With a scaler, gradients are unscaled before they are examined and clipped,
  // and an overflow that it forgives is no fault. Reads the device several times. Error{numerics}, with the gradients
  // released: as NanConfig says.
  StabilityResult step(const ModelState& model, const at::Tensor& loss, Optimizer& optimizer,
                       GradScaler* scaler = nullptr);
  // The same with its forward: gradients are released, then the loss is computed.
  StabilityResult step(const ModelState& model, const std::function<at::Tensor()>& compute_loss, Optimizer& optimizer,
                       GradScaler* scaler = nullptr);

  // The same model, set up in place by a ModelOptimizer as the performance configuration says, before an optimizer is
  // made; get_performance_summary() tells what became of it. Does nothing without that configuration.
  ModelState optimize_model(ModelState model);
  StabilitySummary get_performance_summary() const;
  const StabilityConfigs& configs() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whole steps: forward, backward, guard, update. Where the performance configuration has mixed precision, the forward
// of a model on CUDA is in float16 with a scaler, and in bfloat16, which needs no loss scale, without one.
class TrainingWrapper {
 public:
  explicit TrainingWrapper(NumericalStabilityManager stability) : manager(std::move(stability)) {}

  // NumericalStabilityManager::step() with this forward's loss. Errors as there.
  StabilityResult step(const ModelState& model, const Forward& forward, const TensorBatch& batch, Optimizer& optimizer,
                       GradScaler* scaler = nullptr);

  NumericalStabilityManager manager;
};

// Errors as NumericalStabilityManager's.
TrainingWrapper create_training_wrapper(const StabilityConfigs& configs = {});

}  // namespace headrace::facade
