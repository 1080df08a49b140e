// The training step and the loop around it: autocast, accumulation, clipping, update, schedule, spans of each part.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/options/lr_scheduler.h>
#include <headrace/options/model.h>
#include <headrace/options/train.h>
#include <headrace/tensor_batch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct Output {
  at::Tensor loss;                          // One number, mean over the batch.
  std::map<std::string, at::Tensor> named;  // "logits", ...
};

// Must be a pure function of the batch and the model's parameters, buffers and generators. Called under autocast.
using Forward = std::function<Output(const TensorBatch&)>;
// The same with its batch inside: a batch may be of any form then (Python's are).
using BoundForward = std::function<Output()>;

enum class StepPart { transfer, forward, backward, optimizer };

// Where a run stands; saved in checkpoints.
struct Progress {
  std::int64_t epoch = 0;  // From 0.
  std::int64_t batch = 0;  // Batches done in this epoch.
  std::int64_t optimizer_steps = 0;
  std::int64_t skipped_updates = 0;     // Left out by the loss scale; no optimizer steps.
  std::int64_t window = 0;              // Micro-batches whose gradients wait in the parameters for the next update.
  double loss_sum = 0;                  // Of the samples since the last take_mean_loss(), as far as losses were read.
  std::int64_t loss_samples = 0;        // Those samples.
  double loss_scale = 0;                // In force; 0 before the first update of a run: TrainOptions::loss_scale.
  std::int64_t scale_good_updates = 0;  // In a row, since the scale changed.
};

// Not thread-safe. A loss, or with clipping a gradient norm, that is not finite is Error{numerics} naming epoch and
// batch: on the CPU before that batch's backward; elsewhere losses are read every 50 steps, so as not to make the
// device wait, and the error names the batch it was. With a loss scale, gradients that are not finite are no error:
// their update is left out. A step that throws leaves parameters, optimizer and progress as they were; where its
// backward had begun, the gradients of its window are dropped and the next step opens a new one. Memory accounts
// "parameters" (with buffers), "gradients" and "optimizer" tell what it holds, and "activations" all other tensors,
// where they are counted when it is made; with TrainOptions::ema_decay "averages" besides.
class Trainer {
 public:
  // `optimizer_steps_total` is what a cosine schedule spreads over; a step schedule divides it into options.epochs
  // equal epochs. `forward` may be empty where every step brings its own.
  Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options, LrSchedulerOptions schedule,
          std::int64_t optimizer_steps_total);
  ~Trainer();

  // One micro-batch: forward, backward; every `gradient_accumulation_steps` micro-batches, or when `last_of_window`,
  // the update. The gradient of a window is the mean of its micro-batches' gradients, of a window cut short too: that
  // of one large batch where they are equal in size; a smaller one counts as much as the others. Gradients that were
  // there before a window are dropped. Records step::kForward, kBackward and, where there is an update, kOptimizer.
  // Returns the loss, detached.
  at::Tensor step(const TensorBatch& batch, bool last_of_window = false);
  // The same with this forward, called once; `samples` is the batch's weight in the mean loss.
  at::Tensor step(const BoundForward& forward, std::int64_t samples, bool last_of_window = false);
  // The same from a host batch: zero-copy to tensors, then the model's memory format. Records step::kTransfer.
  at::Tensor step(const Batch& batch, bool last_of_window = false);

  // The update of a window that is open, for an epoch whose last batch was not known to be the last. Does nothing
  // without one.
  void finish_window();

  // Every field of the batch; its image in the model's memory format.
  TensorBatch transfer(const Batch& batch) const;
  // Forward and backward without update, progress or clipping; the gradients, of this batch alone, are left in the
  // parameters, and a window that was open is dropped. For fingerprints.
  Output forward_backward(const TensorBatch& batch);
  // Mean loss of the samples of all step() since the last call; nullopt when there were none. Reads the device.
  std::optional<double> take_mean_loss();
  std::optional<double> mean_loss();  // The same, without starting anew.
  // Forward alone, or `forward` in its place, in evaluation mode without gradients; back to training mode afterwards,
  // also by exception.
  Output evaluate(const TensorBatch& batch, const Forward& forward = {});
  Output evaluate(const BoundForward& forward);

  // With TrainOptions::ema_decay: the averages by the names of ModelState, parameters and then buffers, each in its
  // tensor's layout; shared, not copies. They start as copies of the model's first values. Floating-point ones,
  // buffers included, move with each update that is not skipped: without warm-up as timm's ModelEmaV3 of that decay
  // called without a step; with it the decay is that of TensorFlow's ExponentialMovingAverage(num_updates) after
  // Progress::optimizer_steps updates. Tensors of other dtypes are copied. Empty: none are kept. A parameter or buffer
  // that cannot be written in place is Error{invalid_argument} of the constructor.
  const std::vector<std::pair<std::string, at::Tensor>>& averages() const;
  // Runs `work` while the model's tensors hold the averages' values; afterwards, also by exception, they hold their own
  // again, bit for bit. Without averages: `work` alone. Costs three copies of the model's tensors, one of which is held
  // meanwhile.
  void with_averages(const std::function<void()>& work);

  // What a cosine schedule spreads over and a step schedule divides, for a run whose length was not known before.
  void set_run_length(std::int64_t optimizer_steps_total, std::int64_t epochs);

  // Live knobs; each takes effect at the next step.
  void set_precision(Precision precision);
  // 4-D parameters, their gradients and optimizer state, and batches from transfer(). The tensors stay the same
  // objects.
  void set_memory_format(MemoryFormat format);

  ModelState& model();
  Optimizer& optimizer();
  Progress& progress();
  const TrainOptions& options() const;
  double learning_rate() const;  // Of the next optimizer step, from the first group's lr, not times its lr_mult.
  double loss_scale() const;     // Of the next backward; 1 without one.

  // Called at the start of each part of a step, inside its span: planted knobs, gradient inspection. At `optimizer` the
  // gradients are the window's, whole and not clipped yet; a loss scale is still in them. There, and at no other part,
  // it may be replaced while it runs: the other one is called from the next part on. Empty: none.
  std::function<void(StepPart)> on_part;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Mean loss and share of right answers over a loader's samples (named output "logits" against labels), by the trainer's
// forward or by `forward`, with the weights that the model holds. Changes nothing of the trainer: no weight, running
// statistic, gradient or random state. `stop` is asked before each batch; where it says true, Error{cancelled}. Empty:
// never.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;                  // The largest logit is the label's (top 1).
  std::optional<double> top5_accuracy;  // The label's logit is among the five largest; nullopt: at most five classes.
  std::int64_t samples = 0;
};
Evaluation evaluate(Trainer& trainer, Loader& loader, const Forward& forward = {},
                    const std::function<bool()>& stop = {});

}  // namespace headrace
