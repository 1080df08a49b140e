// Steps in mixed precision with a gradient scaler, under the names of the Python package performance_optimization.
#pragma once

#include <headrace/error.h>
#include <headrace/facade/training_config.h>
#include <headrace/grad_scaler.h>
#include <headrace/optimizer.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

#include <optional>

namespace headrace::facade {

struct MixedPrecision {
  bool enabled = false;
  std::optional<GradScaler> scaler{};  // New, with torch's defaults; none where it is not enabled.
  Applied report{};  // "mixed_precision", requested and applied "true" or "false", and why they differ.
};

// Enabled where there is CUDA, unless the configuration says no. Opens CUDA's half of the engine, once a process.
// Error{invalid_argument}: two names of mixed precision that differ.
MixedPrecision setup_mixed_precision_training(const TrainingConfig& config = {});

// One step: gradients released, forward with its loss under autocast, backward of the scaled loss, the scaler's step at
// each group's own learning rate, and its update. Returns the loss, not scaled, which waits for the device. Autocast is
// to float16 on CUDA and to bfloat16 on a CPU. A scaler that is nullptr, as without CUDA, or not enabled: a step in
// full precision. Not thread-safe.
double training_step_with_amp(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer,
                              GradScaler* scaler);

}  // namespace headrace::facade
