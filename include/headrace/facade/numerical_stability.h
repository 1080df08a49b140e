// Steps with clipping and a guard against numbers that are not finite, under the names of the Python package
// performance_optimization.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/grad_scaler.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/options/step_guard.h>
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

struct DebugConfig {
  // A NaN that an operator of backward gives, or of a forward within step(), is a fault that names it, also without a
  // NanConfig, as StepGuard does it.
  bool detect_anomaly = false;
  bool gradient_statistics = false;  // A result has the norm of each parameter's gradient.
};

// What is left out is not done.
struct StabilityConfigs {
  std::optional<ClippingConfig> clipping_config{};
  std::optional<NanConfig> nan_config{};
  std::optional<DebugConfig> debug_config{};
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
};

struct StabilitySummary {
  std::int64_t steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t nan_count = 0;
  std::int64_t clip_count = 0;
  std::int64_t scaler_overflows = 0;  // Which the scaler forgives: no NaN.
};

// For one model and its optimizer. Not thread-safe. What is examined, clipped and updated are the parameters that the
// optimizer steps, at each group's own learning rate. With the policy rollback it holds a copy of all training state.
class NumericalStabilityManager {
 public:
  // Error{invalid_argument}: a limit or count that is not above 0, an lr_factor that is not below 1.
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

  StabilitySummary get_performance_summary() const;
  const StabilityConfigs& configs() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whole steps: forward in full precision, backward, guard, update.
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
