// The training step and the loop around it: autocast, accumulation, clipping, update, schedule, spans of each part.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/clip_gradients.h>
#include <headrace/device_figures.h>
#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/options/lr_scheduler.h>
#include <headrace/options/model.h>
#include <headrace/options/train.h>
#include <headrace/plateau.h>
#include <headrace/step_guard.h>
#include <headrace/tensor_batch.h>

#include <cstdint>
#include <filesystem>
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
  // What `loss` is the mean of, where that is not the samples: tokens, boxes. A batch of weight 0, whose mean may be
  // NaN, has no backward and adds nothing to its window.
  std::optional<double> weight{};
  // Samples that count, where that is not all that forward was called for: at least 0.
  std::optional<std::int64_t> samples{};

  // What its loss counts: `count`, its samples, where there is no weight. Error{invalid_argument}: below 0, or not
  // finite.
  double weight_or(std::int64_t count) const;
};

// Must be a pure function of the batch and the model's parameters, buffers and generators. Called under autocast.
using Forward = std::function<Output(const TensorBatch&)>;
// The same with its batch inside: a batch may be of any form then (Python's are).
using BoundForward = std::function<Output()>;
// The same over its samples `begin` to before `end`, so that it can be computed in parts.
using PartForward = std::function<Output(std::int64_t begin, std::int64_t end)>;

// A batch whose tensors can be put elsewhere: on the model's device, and where a captured step reads them. Their values
// must stay as they are until the device has copied them: of page-locked memory, beyond the step.
struct MovableBatch {
  std::vector<at::Tensor> tensors;  // In the same order for all batches of one structure.
  std::string structure{};          // Which places they have in the batch: only such steps are replayed for each other.
  // Forward over the batch with these in their places. What else it holds, a captured step keeps of the one that was
  // captured.
  std::function<Output(const std::vector<at::Tensor>&)> forward;
};

// What TrainOptions::cuda_graph came to.
struct GraphReport {
  std::int64_t replays = 0;     // Steps that were replayed.
  std::int64_t pool_bytes = 0;  // Device memory that the captured steps keep.
  std::string reason{};         // Why the last step was not; empty: it was, or none was made yet.
};

enum class StepPart { transfer, forward, backward, optimizer };

// Where a run stands; saved in checkpoints.
struct Progress {
  std::int64_t epoch = 0;  // From 0.
  std::int64_t batch = 0;  // Batches done in this epoch.
  std::int64_t optimizer_steps = 0;
  std::int64_t skipped_updates = 0;     // Left out by loss scale or step guard, or of weight 0; no optimizer steps.
  std::int64_t window = 0;              // Micro-batches whose gradients wait in the parameters for the next update.
  double window_weight = 0;             // Of these together, as multiples of the heaviest one's...
  double largest_weight = 0;            // ...which is this; 0: none of any weight yet.
  double loss_sum = 0;                  // Of the samples since the last take_mean_loss(), as far as losses were read.
  std::int64_t loss_samples = 0;        // Those samples.
  double loss_scale = 0;                // In force; 0 before the first update of a run: TrainOptions::loss_scale.
  std::int64_t scale_good_updates = 0;  // In a row, since the scale changed.
  std::int64_t clipped_updates = 0;     // Whose gradients were above the limit of the clipping.
  GuardCounts guard{};
  PlateauState plateau{};  // Of ReduceLROnPlateau; moved by whoever has the metric, with after_metric().
  // Samples that are computed at once, at most; 0: all of a batch. Memory that runs out lowers it, and whoever knows
  // what fits may set it. A batch in parts is one batch in `batch` and one micro-batch in `window`.
  std::int64_t micro_batch = 0;
  bool micro_batch_grows = false;  // With the policy halve it doubles with each window, until memory runs out.
  std::int64_t out_of_memory = 0;  // Times that memory ran out and micro_batch was lowered.
};

// What a trainer knows of its window beside Progress; not in checkpoints, which are made between windows.
struct WindowNotes {
  ClipReport clip_report{};  // Of the last one.
  bool has_fault = false;    // The guard bore with one in the open window, whose update is then no good one.
};

// Another optimizer that makes the updates, as torch.optim's of a class that Optimizer has none of. A schedule moves
// its learning rates alone, no momentum.
struct ExternalOptimizer {
  std::string name{};  // What a checkpoint calls it: "torch.optim.adagrad.Adagrad".
  // Updates from the gradients, at the rates that its argument makes of its own. Empty: there is none.
  std::function<void(const std::function<double(double)>& scheduled)> step{};
  // What it returns puts its state back to where it is now. The policy rollback needs it.
  std::function<std::function<void()>()> keep_state{};
};

// Generators that forward draws from beside LibTorch's, as Python's and NumPy's.
struct OtherGenerators {
  // All their states as bytes, uint8 on the CPU. Called before each part with the policy halve, and where rollback
  // keeps a state; of another length than the time before all of that state is allocated anew. Empty: there are none.
  std::function<at::Tensor()> state{};
  std::function<void(const at::Tensor& state)> set_state{};  // Whatever state() gave, also in another process.
};

// Not thread-safe. A loss, gradient or weight that is not finite meets TrainOptions::step_guard; by its default it is
// Error{numerics} naming epoch, batch and the first tensor that went bad: of a loss on the CPU before that batch's
// backward; on a device losses and what updates found are looked at up to twice TrainOptions::loss_interval steps
// later, or when a mean loss is asked for, so that no step waits for it, and the error names the batch it was. The
// update of gradients that are not finite is left out there meanwhile. The policy skip does the same: the device itself
// leaves a bad batch's update out and puts its buffers back, without a wait, and once that is read the fault is counted
// and named, and optimizer_steps is one less; until then schedules and the warm-up of averages count the update. It
// does so for windows of one batch that is not cut, without detect_anomaly. A loss scale, the other policies that go
// on, step_guard.weights, clip_grad_ratio and another optimizer have figures read at each step. With a loss scale,
// gradients that are not finite are no fault: their update is left out; nor is a NaN in the backward's operators, which
// an overflow makes. Gradients are those of the optimizer's parameters; others are dropped with their window and looked
// at by nobody. A step that throws leaves parameters, optimizer and progress as they were, but for what the guard has
// counted, what an external optimizer that throws has done, and an update that was made: one that made a weight bad
// with step_guard.weights, or after which the state to roll back to could not be kept, or one for which memory ran out,
// which may have moved some parameters and not others; where its backward had begun, the gradients of its window are
// dropped and the next step opens a new one. Under the policy raise the buffers keep what the forward of a bad batch
// has put there, and on a device so do their averages. Memory accounts "parameters" (with buffers), "gradients" and
// "optimizer" tell what it holds, and "activations" all other tensors, where they are counted when it is made; with
// TrainOptions::ema_decay "averages" besides, with the policy rollback "last good state".
//
// What the guard's policies do, each counted in Progress::guard:
// - skip, lower_lr: the window is dropped, the next step opens a new one. Buffers, which a bad forward spoils, are put
//   back as they were before it; of a batch in parts, before the bad part. lower_lr lowers the rate of all steps after
//   it, too.
// - replace: a micro-batch whose loss is bad is left out of its window, and its buffers are put back. Bad elements of
//   gradients, weights and buffers become 0.
// - rollback: parameters, buffers, optimizer, averages, loss scale and generators (the CPU's, the device's and
//   other_generators) become those of the last good state, which is kept before the first step, where another optimizer
//   makes the updates, and every keep_every updates unless a weight or the optimizer's state is not finite. The place
//   in the data, the schedule's position and all counts go on, and the window is dropped.
//
// Where memory runs out in a forward or backward (c10::OutOfMemoryError, what LibTorch's allocator of the CPU throws,
// std::bad_alloc, Error{out_of_memory}), TrainOptions::on_out_of_memory decides. raise: the exception goes on. halve:
// what the forward and backward have made is dropped, buffers and the same generators become what they were before, and
// the samples are computed again in parts of half as many, which Progress::micro_batch keeps for all later steps.
// Memory that runs out elsewhere, as while gradients are added up, the guard mends or the update is made, is an
// exception that goes on, as what is half done then must not be done twice. Parts count in their window as
// micro-batches do, by their samples or weights, so that the update is that of the whole batch; schedule, averages,
// optimizer steps and their batches stay the same. It is the update of a run with that micro_batch from there on, bit
// for bit; where the model has BatchNorm, another one than of the whole batch. With one sample that is too much, or a
// forward that cannot be cut, it is Error{out_of_memory} with the first exception's sentence; micro_batch and
// out_of_memory stay as the halvings have left them. A guard that leaves a window out for one part leaves the rest of
// its batch out, too. halve keeps copies of buffers and generator before each part, and puts the gradients that a
// window has already aside during a backward, which costs their memory once more.
class Trainer {
 public:
  // `optimizer_steps_total` is what a cosine schedule spreads over. A schedule that is stepped by epoch counts updates:
  // its epoch is optimizer_steps_total / options.epochs of them, rounded down, whatever Progress::epoch says; an update
  // that is left out moves the ends of its later epochs by one. `forward` may be empty where every step brings its own.
  // The optimizer gets the schedule's first momentum. Error{invalid_argument}: a schedule, clip, number of epochs,
  // precision, loss_interval or memory limit that cannot be.
  Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options, LrSchedulerOptions schedule,
          std::int64_t optimizer_steps_total);
  ~Trainer();

  // One micro-batch: forward, backward; every `gradient_accumulation_steps` micro-batches, or when `last_of_window`,
  // the update. The gradient of a window is that of one batch of all its samples, of a window cut short too: the mean
  // of its micro-batches' gradients, each weighted by its samples that count or by the weight that forward returned, in
  // any order and without multiplying any gradient by more than the loss scale. Where forward returns samples, those
  // count in the place of all that it was called for. Gradients that were there before a window are dropped. Records
  // step::kForward, kBackward and, where there is an update, kOptimizer. Returns the loss, detached.
  at::Tensor step(const TensorBatch& batch, bool last_of_window = false);
  // The same with this forward, called once; `samples` is the batch's weight in the mean loss and, unless forward
  // returns one, in its window. Cannot be computed in parts, whatever Progress::micro_batch says.
  at::Tensor step(const BoundForward& forward, std::int64_t samples, bool last_of_window = false);
  // The same of a batch that can: forward is called for all `samples`, or for parts of them in order. Returns the mean
  // of the parts' losses, each by its weight. Error{invalid_argument}: less than one sample.
  at::Tensor step(const PartForward& forward, std::int64_t samples, bool last_of_window = false);
  // The same of a batch that is moved to the model's device first, without waiting where its accelerator can. With
  // TrainOptions::cuda_graph the first steps of batches of the same structure, shapes and dtypes are made operator by
  // operator, the next one is captured, with forward, backward, clipping, update and averages, and replayed from then
  // on: forward's own code no longer runs, on_part is not called, and spans tell of the transfer alone. It is captured
  // again after a change of precision, memory format, optimizer or its settings but for rates. Where it cannot be, as
  // graph_report() says, all goes on without, after forward was called once more. Modes of the model's parts, settings
  // of torch beside autocast and determinism, and tensors that forward takes from elsewhere stay those of the capture.
  // The returned loss is no other step's. While a step is captured no other thread may draw from the device's
  // generator.
  at::Tensor step(const MovableBatch& batch, std::int64_t samples, bool last_of_window = false);
  // The same from a host batch: zero-copy to tensors, then the model's memory format. Records step::kTransfer.
  at::Tensor step(const Batch& batch, bool last_of_window = false);

  // The update of a window that is open, for an epoch whose last batch was not known to be the last. Does nothing
  // without one.
  void finish_window();

  // Every field of the batch; its image in the model's memory format.
  TensorBatch transfer(const Batch& batch) const;
  // Forward and backward without update, progress or clipping; the gradients, of this batch alone, are left in the
  // parameters, and a window that was open is dropped. Of the whole batch at once, whatever Progress::micro_batch says:
  // memory that runs out is an exception that goes on. For fingerprints.
  Output forward_backward(const TensorBatch& batch);
  Output forward_backward(const BoundForward& forward);
  // Mean loss of the samples of all step() since the last call, each batch by its samples, whatever weight its forward
  // returned; nullopt when there were none. Reads the device.
  std::optional<double> take_mean_loss();
  std::optional<double> mean_loss();  // The same, without starting anew.
  void drop_losses();                 // Starts anew without reading them, nor what else waits on a device.
  // Forward alone, or `forward` in its place, in evaluation mode without gradients; back to training mode afterwards,
  // also by exception.
  Output evaluate(const TensorBatch& batch, const Forward& forward = {});
  Output evaluate(const BoundForward& forward);

  // Forward alone in training mode without gradients: running statistics move with the batch, and dropout draws.
  Output forward_without_graph(const TensorBatch& batch);

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
  // Error{invalid_argument}: less than one epoch.
  void set_run_length(std::int64_t optimizer_steps_total, std::int64_t epochs);
  // Takes swa_start, swa_lr, swa_anneal_epochs and swa_anneal_strategy of these, for a run that says them when it
  // begins: the rate of each epoch behind swa_start, as TrainOptions has it.
  void set_swa_lr(const TrainOptions& options);
  // Gives optimizer() the momentum of the next update, where the schedule moves it, and the state that this needs. For
  // whoever has put another optimizer in its place; updates and checkpoints do so themselves.
  void schedule_momentum();

  // Live knobs; each takes effect at the next step.
  void set_precision(Precision precision);  // Error{invalid_argument}: fp16 without a loss scale.
  // 4-D and 5-D parameters, of convolutions over images and over clips, their gradients and optimizer state, and images
  // of batches from transfer(); channels_last of 5-D ones is torch's channels_last_3d. The tensors stay the same
  // objects.
  void set_memory_format(MemoryFormat format);
  // In the place of TrainOptions::memory_limit_mib, in bytes; 0: the trainer has none. Of what CPU tensors hold in the
  // whole process: parameters, buffers, gradients, averages, optimizer state and last_good_state() of this trainer, and
  // all that are made from the first limit on; an external optimizer's state that is older is not counted. Of several
  // trainers with a limit the newest limit is in force; it ends with its trainer, and the next newest one is in force
  // again, or what was there before the first. More than before, or none, lets Progress::micro_batch grow again from
  // the next window on, and less stops that. Not applied to a model on another device, and where LibTorch's place for
  // an allocator cannot be had. Error{invalid_argument}: below what parameters and buffers take.
  const Applied& set_memory_limit(std::int64_t bytes);
  const Applied& applied_memory_limit() const;  // train.memory_limit_mib as it is in force.
  // What was done when memory ran out last, a sentence; empty: nothing yet. "in epoch 0, batch 2, memory ran out with
  // 32 samples at once, from now on it is at most 16: torch: ..."
  const std::string& last_out_of_memory() const;

  // With the policy rollback, what it returns to: "model/conv1.weight", "optimizer/conv1.weight/exp_avg", ...,
  // "generator/cpu" and those of the device and of other_generators, "loss_scale"; shared. Empty: nothing was kept yet,
  // or the policy is another.
  const std::vector<std::pair<std::string, at::Tensor>>& last_good_state() const;
  // Puts these in its place; none, or with an external optimizer: the state at the next step. Nothing happens under
  // another policy.
  void set_last_good_state(std::vector<std::pair<std::string, at::Tensor>> tensors);

  const StepGuard& guard() const;
  ModelState& model();
  Optimizer& optimizer();
  Progress& progress();
  const TrainOptions& options() const;
  const GraphReport& graph_report() const;
  double learning_rate() const;  // Of the next optimizer step, from the first group's lr, not times its lr_mult.
  // Of each group's next update, times its lr_mult.
  std::vector<double> learning_rates() const;
  double loss_scale() const;  // Of the next backward; 1 without one.
  // What the update multiplies the gradients of the open window with before it clips: it takes the loss scale off and
  // makes their mean. 1 for a window of one micro-batch without a loss scale.
  double gradient_factor() const;
  // What clipping found in the last window, whose update may have been left out; without a clip or a loss scale in
  // TrainOptions, zeros.
  const ClipReport& clip_report() const;
  // For whoever makes steps in between and puts all back: these, and after them the account of gradients is right.
  const WindowNotes& window_notes() const;
  void set_window_notes(const WindowNotes& notes);

  // Memory of the model's device, of this whole process; on the CPU, or without the plugin, unavailable and why. Any
  // thread, also while steps run.
  DeviceMemoryReport device_memory() const;
  void reset_peak_device_memory();  // Does nothing where that is unavailable.
  // Gives the driver back what the allocator keeps for later and no tensor has. Waits for the device, and what is
  // needed again must be got again, which takes much longer than a step's own allocations: between steps where another
  // process needs the memory, not at each. Returns the bytes by which what is reserved fell; nullopt: unavailable.
  std::optional<std::int64_t> release_device_cache();
  // Writes what the allocator holds now as a file that https://pytorch.org/memory_viz and torch.cuda._memory_viz read:
  // some hundred bytes a block. Error{unsupported}: as device_memory(). Error{io}: the file cannot be written.
  void save_device_memory(const std::filesystem::path& path) const;
  // Has the device's own events tell how long it works on each phase of the steps from now on, one that the host
  // records a phase; switched on again it starts anew. Without, a Trace has it done while it records, and gets the
  // phases as spans "device_forward" and its like, of a track named as the device; of a batch cut in parts its transfer
  // counts as forward. Not applied on the CPU, whose work the spans of its threads time, or without the plugin.
  Applied time_device(bool on);
  DeviceTimes device_times();  // Of the phases that the device has passed by now; waits for none.

  // Called at the start of each part of a step, inside its span: planted knobs, gradient inspection. For a batch that
  // is computed in parts, or again, `forward` and `backward` are told once. At `optimizer` the
  // gradients are those of the whole window, added up: times gradient_factor() its mean, not clipped yet. There, and at
  // no other part, it may be replaced while it runs: the other one is called from the next part on. Empty: none.
  std::function<void(StepPart)> on_part;

  // Steps in the place of optimizer(), which then only knows the parameters and their groups. Its state is saved by
  // whoever gave it.
  ExternalOptimizer external_optimizer;

  // Their states are put back with those of LibTorch: by the policy rollback, and where a part is computed again.
  OtherGenerators other_generators;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Of one class, in an evaluation.
struct ClassCounts {
  std::int64_t samples = 0, right = 0;  // Whose label is the class; of them, those that were right.
  std::int64_t predicted = 0;           // Samples of any class for which this class had the largest logit.
};

// Mean loss and share of right answers over a loader's samples (named output "logits" against labels), by the trainer's
// forward or by `forward`, with the weights that the model holds. Batches count in the loss by the weight that forward
// returns, else by their samples; where nothing counts it is NaN. Changes nothing of the trainer: no weight, running
// statistic, gradient or random state. Computes Progress::micro_batch samples at once, so that a run whose batches are
// cut is evaluated within the same memory; with the policy halve memory that runs out halves them, for this evaluation
// alone, down to one sample. All is added up on the model's device and read once, at the end. `stop` is asked before
// each batch; where it says true, Error{cancelled}. Empty: never.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;                  // The largest logit is the label's (top 1).
  std::optional<double> top5_accuracy;  // The label's logit is among the five largest; nullopt: at most five classes.
  std::int64_t samples = 0;
  std::vector<ClassCounts> classes{};  // By label, as many as there are logits. A label that is none is in no class.
};
Evaluation evaluate(Trainer& trainer, Loader& loader, const Forward& forward = {},
                    const std::function<bool()>& stop = {});

}  // namespace headrace
