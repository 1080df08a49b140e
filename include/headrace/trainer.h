// The training step and the loop around it: autocast, accumulation, clipping, update, schedule, spans of each part.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "model/model_options.h"
#include "train/train_options.h"

namespace headrace {

// A batch on the device, in the model's layout.
struct TensorBatch {
  at::Tensor images;  // (N, C, H, W) float32.
  at::Tensor labels;  // (N) int64.
};

struct Output {
  at::Tensor loss;                          // Scalar, mean over the batch.
  std::map<std::string, at::Tensor> named;  // "logits", ...
};

// Must be a pure function of the batch and the model's parameters, buffers and generators. Called under autocast.
using Forward = std::function<Output(const TensorBatch&)>;

// Where a run stands; saved in checkpoints.
struct Progress {
  std::int64_t epoch = 0;  // From 0.
  std::int64_t batch = 0;  // Batches done in this epoch.
  std::int64_t optimizer_steps = 0;
};

// Not thread-safe. Throws Error{numerics} naming epoch and batch when a loss is not finite.
class Trainer {
 public:
  // `optimizer_steps_total` is what a cosine schedule spreads over.
  Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options, ScheduleOptions schedule,
          std::int64_t optimizer_steps_total);
  ~Trainer();

  // One micro-batch: transfer, forward, backward; every `accumulate` micro-batches, or when `last_of_window`, the
  // update. The loss as a tensor that is not read here (no device sync); `loss_of_epoch()` reads sums.
  at::Tensor step(const TensorBatch& batch, bool last_of_window = false);
  // The same from a host batch: zero-copy to tensors, then the model's memory format. Records step::kTransfer.
  at::Tensor step(const Batch& batch, bool last_of_window = false);

  TensorBatch transfer(const Batch& batch) const;
  // Forward and backward without update; gradients are left in the parameters. For fingerprints.
  Output forward_backward(const TensorBatch& batch);
  // Forward alone in evaluation mode without gradients.
  Output evaluate(const TensorBatch& batch);

  // Live knobs; each takes effect at the next step.
  void set_precision(Precision precision);
  void set_memory_format(MemoryFormat format);  // Converts parameters, gradients and optimizer state; same values.

  ModelState& model();
  Optimizer& optimizer();
  Progress& progress();
  double learning_rate() const;  // Of the next optimizer step.

  // Called between backward and the update of every optimizer step (planted knobs, gradient inspection). Empty: none.
  std::function<void()> before_update;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Mean loss and share of right answers over a loader's samples (named output "logits", argmax against labels). Leaves
// the training flag as it was.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;
  std::int64_t samples = 0;
};
Evaluation evaluate(Trainer& trainer, Loader& loader);

}  // namespace headrace
