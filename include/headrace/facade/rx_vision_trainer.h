// A trainer whose steps are written by hand, under the names of the Python package performance_optimization.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/grad_scaler.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/tensor_batch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
class Loader;
}

namespace headrace::facade {

// Largest L2 norm of all gradients of an update together, by two names of one setting; neither given: 1.
struct HyperParameters {
  std::optional<double> max_grad_norm{};
  std::optional<double> gradient_clip_val{};
};

// Steps in mixed precision with clipping, optimized by hand: each update is clipped once, in training_step(). A class
// of one's own gives compute_loss(), and may replace configure_training() and training_step(). Not thread-safe.
class RxVisionTrainer {
 public:
  static constexpr bool automatic_optimization = false;

  // The gradients of `model` are released before each step; the parameters that `optimizer` steps, at each group's own
  // learning rate, are clipped. `scaler`: none: configure_training() makes one. Error{invalid_argument}: a model
  // without parameters, two names of the limit that differ, or a limit that is not above 0.
  RxVisionTrainer(ModelState model, Optimizer optimizer, const HyperParameters& hparams = {},
                  std::optional<GradScaler> scaler = std::nullopt);
  virtual ~RxVisionTrainer();
  RxVisionTrainer(const RxVisionTrainer&) = delete;
  RxVisionTrainer& operator=(const RxVisionTrainer&) = delete;

  // One number, the mean over the batch. Called under autocast by this class's training_step().
  virtual at::Tensor compute_loss(const TensorBatch& batch) = 0;
  // Called once, by the first fit() or by this class's training_step() where that comes first. Makes a scaler that is
  // in force on CUDA alone, where there is none yet. One that leaves `scaler` empty gets one that is not in force.
  virtual void configure_training();
  // Forward under autocast, which is on on CUDA alone, to float16; backward of the scaled loss; gradients unscaled,
  // then clipped to hparams().max_grad_norm; the scaler's step and update. Returns the loss, detached.
  virtual at::Tensor training_step(const TensorBatch& batch, std::int64_t batch_idx);

  Optimizer& optimizers() { return optimizer_; }
  const ModelState& model() const { return model_; }
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return model_.parameters; }
  // Both names have the value that is in force.
  const HyperParameters& hparams() const { return hparams_; }

  // training_step() over the batches, epoch by epoch; returns each epoch's mean of the losses, which are read from the
  // device. The model is in training mode then. Gradients are released before each step, also where a training_step()
  // of one's own does not. The batches of a Loader's epochs from 0 on lie on the CPU. Error{invalid_argument}: no batch
  // in an epoch.
  std::vector<double> fit(const std::vector<TensorBatch>& batches, std::int64_t epochs = 1);
  std::vector<double> fit(Loader& loader, std::int64_t epochs = 1);

  std::optional<GradScaler> scaler;

 private:
  void configure_once();
  // Of the model's parameters that the optimizer does not step, too: theirs would add up over all steps.
  void zero_gradients();
  double mean_over(std::int64_t epoch, const std::function<std::optional<TensorBatch>()>& next_batch);

  ModelState model_;
  Optimizer optimizer_;
  HyperParameters hparams_;
  bool is_configured_ = false;
};

}  // namespace headrace::facade
