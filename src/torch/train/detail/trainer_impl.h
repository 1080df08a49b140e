// What a Trainer is made of, and what its sources share: trainer.cpp builds it and has its public calls,
// trainer_step.cpp makes forward and backward of a step, trainer_update.cpp the update and what the guard decides,
// trainer_device.cpp updates by operators and captured steps. No other file includes this.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <headrace/error.h>
#include <headrace/grad_scaler.h>
#include <headrace/lr_scheduler.h>
#include <headrace/trainer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/device/accelerator.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/captured_step.h"
#include "torch/train/device_timer.h"
#include "torch/train/last_good_state.h"
#include "torch/train/micro_batch.h"
#include "torch/train/step_figures.h"
#include "torch/train/trainer_accounts.h"
#include "torch/train/weight_average.h"
#include "torch/train/window_update.h"

namespace headrace {

// Some samples of a batch: their forward, and how many of them count.
struct BatchPart {
  BoundForward forward;
  std::int64_t counted;
};

// What a step is to compute.
struct StepBatch {
  std::function<BatchPart(std::int64_t begin, std::int64_t end)> part;
  std::int64_t samples;
  bool can_be_cut;
  bool is_moved = false;  // To the device, by step_on().
};

struct PartLoss {
  at::Tensor loss;  // Detached.
  double weight;
};

// Where a step stands between its parts.
class StepUnderWay {
 public:
  explicit StepUnderWay(const std::function<void(StepPart)>& told) : told_(told) {}

  bool has_begun = false;     // To change the gradients of its window.
  bool is_left_out = false;   // By the guard, with its window.
  bool is_computing = false;  // A forward or backward, which can be made again; elsewhere what changes, changes once.

  // Once each.
  void tell_forward() {
    if (told_ && !std::exchange(told_forward_, true)) told_(StepPart::forward);
  }
  void tell_backward() {
    if (told_ && !std::exchange(told_backward_, true)) told_(StepPart::backward);
  }
  void add(PartLoss part) {
    if (!last_.loss.defined()) {
      last_ = std::move(part);
      return;
    }
    if (!sum_.defined()) add_to_sum(last_);
    add_to_sum(part);
    last_ = std::move(part);
  }

  // Of the parts that count, where there are some.
  at::Tensor mean_loss() const { return weight_ > 0 ? sum_.div(weight_) : last_.loss; }

 private:
  void add_to_sum(const PartLoss& part) {
    if (part.weight == 0) return;
    const at::Tensor weighted = part.loss.mul(part.weight);
    sum_ = sum_.defined() ? sum_.add(weighted) : weighted;
    weight_ += part.weight;
  }

  const std::function<void(StepPart)>& told_;
  bool told_forward_ = false, told_backward_ = false;
  PartLoss last_{};
  at::Tensor sum_;  // Where there are several parts.
  double weight_ = 0;
};

// What Impl begins some of its members with (trainer.cpp).
std::vector<at::Tensor> without_names(const NamedTensors& named);
// nullptr: the host's clock tells what there is to tell.
Accelerator* timed_accelerator(at::Device device, Accelerator* accelerator);

struct Trainer::Impl {
  ModelState model;
  Optimizer optimizer;
  Forward forward;
  TrainOptions options;
  LrSchedulerOptions schedule;
  RunLength run;
  MemoryFormat memory_format = MemoryFormat::contiguous;
  Progress progress;
  at::Tensor seed;  // What the last backward began with.
  double seed_value = 0;
  std::string why_no_accelerator{};
  const at::Device device = model.parameters.empty() ? at::Device(at::kCPU) : model.parameters.front().second.device();
  // Of a device, or for captured steps.
  Accelerator* const accelerator =
      device.is_cpu() && !options.cuda_graph ? nullptr : accelerator_of(device, why_no_accelerator);
  StepFigures figures{accelerator, options.loss_interval};
  DeviceTimer timer{timed_accelerator(device, accelerator), device.str()};
  std::vector<std::unique_ptr<StepForm>> forms;
  GraphReport graph;
  // What an update by operators reads on the device, and their values there.
  at::Tensor rates{}, average_weight{};
  std::vector<double> rates_there{};
  double average_weight_there = -1;
  std::optional<WeightAverage> average = average_of(model, options.ema_decay, options.ema_warmup);
  StepGuard guard{model, options.step_guard};
  WindowNotes notes;
  at::Tensor unread_loss{};                                   // Of the step at hand, which the device judges.
  std::pair<std::int64_t, std::int64_t> left_out_at{-1, -1};  // Epoch and batch of the last note_left_out().
  const std::vector<at::Tensor> buffers = without_names(model.buffers);
  std::vector<at::Tensor> buffers_before;  // Their values before the forward, for policies that put them back.
  std::int64_t batch_at_hand = 0;          // Of the last step, in its epoch.
  LastGoodState last_good;
  const ExternalOptimizer* external = nullptr;  // The trainer's.
  const OtherGenerators* generators = nullptr;  // Likewise.
  WindowUpdate window_update{model, optimizer, options, average ? &*average : nullptr};
  TrainerAccounts accounts{model, averages(), rolls_back()};
  std::size_t state_count = 0;  // Tensors of optimizer state whose bytes the accounts have.
  HeldMemoryLimit memory_limit{};
  std::string last_out_of_memory{};

  // ---- Averages, batches and what the device tells (trainer.cpp) ----
  const NamedTensors& averages() const {
    static const NamedTensors none;
    return average ? average->tensors() : none;
  }
  // Refers to `batch`, whose tensors forward gets on the model's device.
  BoundForward bound(const TensorBatch& batch) const;
  TensorBatch moved(const TensorBatch& batch) const;
  // Why there is no accelerator of a device.
  std::string why_no_device() const;

  // ---- A step (trainer_step.cpp) ----
  Output run_forward(const BoundForward& bound) const;
  // `scale` times the gradients: the same as to multiply the loss with it.
  void run_backward(const at::Tensor& loss, double scale);
  void note_gradients();
  // What multiplies the gradients of a micro-batch of this weight, which is above 0. At most 1: a heavier one makes
  // those before it smaller. Equal ones have 1 each, so that their window has the bits of a plain sum.
  double share_of(double weight) const;
  // Counts it, and makes those before it smaller where it is heavier.
  void join_window(double weight);
  const Applied& set_memory_limit(std::int64_t bytes);
  bool halves() const { return options.on_out_of_memory == OutOfMemoryPolicy::halve; }
  void before_forward();
  // Also what a backward left in parameters that the optimizer has not.
  void drop_gradients();
  void drop_window();
  // As a window whose update was left out.
  void leave_out_window();
  // Half-made gradients would spoil the next window.
  template <class Body>
  void or_drop_window(const Body& body) {
    try {
      body();
    } catch (...) {
      drop_window();
      throw;
    }
  }
  at::Tensor step(const StepBatch& batch, const std::function<void(StepPart)>& told, bool last_of_window);
  // Only where it is survived that the larger one is too large.
  void grow_micro_batch(std::int64_t samples);
  // False: it did not, all is as it was before, and the micro-batch is smaller.
  bool compute_if_it_fits(const StepBatch& batch, std::int64_t begin, std::int64_t end, StepUnderWay& under_way);
  void note_out_of_memory(const StepBatch& batch, std::int64_t samples, const std::string& reason);
  // Forward and backward of a part of a batch; `is_first` of it.
  PartLoss compute(const BatchPart& part, bool is_first, StepUnderWay& under_way);
  // To those of the window.
  void add_gradients_of(const at::Tensor& loss, double weight, StepUnderWay& under_way);
  // That a backward may give one: the model's, and the optimizer's, which may be others; most of them twice.
  std::vector<at::Tensor> parameters_with_gradients() const;
  // False: what an operator gave was NaN, and the guard left its window out.
  bool activations_are_good();

  // ---- The update and the guard (trainer_update.cpp) ----
  bool rolls_back() const { return options.step_guard.policy == GuardPolicy::rollback; }
  // Takes off the loss scale and makes the mean of the window.
  double gradient_factor() const;
  // False: a loss was not finite, and the guard bore with it. On a device it waits, without its graph, where a fault is
  // an error and not a decision.
  bool note_loss(const at::Tensor& loss, std::int64_t samples);
  void add_loss(double value, std::int64_t samples) {
    progress.loss_sum += value * static_cast<double>(samples);
    progress.loss_samples += samples;
  }
  void add_figure(at::Tensor values, std::int64_t batch, std::int64_t samples, StepFigure::Kind kind,
                  std::int64_t row = StepFigure::kWhole);
  // All there are; waits for the device.
  void read_figures();
  // Of the policy raise, so that a fault throws, or of an update that the device has left out.
  void take(const StepFigureRead& read);
  // Once a batch, which may have a bad loss and bad gradients: takes back that its update was counted.
  void note_left_out(StepFault fault);
  bool checks_gradients() const { return options.step_guard.gradients || window_update.clips(); }
  StepFault here(StepFault fault) const;
  // Does what the policy says, or throws. Returns whether what is there now may be used.
  bool bear_with(const StepFault& fault);
  RolledBack rolled_back() { return {model, averages(), optimizer, *external, progress, *generators}; }
  void keep_state();
  // What a rollback returns to.
  void have_last_good();
  // After a bad forward.
  bool guard_needs_buffers() const { return options.step_guard.policy != GuardPolicy::raise && !rolls_back(); }
  GradScalerState loss_scale() const;
  double scheduled(double lr) const;
  std::vector<double> scheduled_rates() const;  // Of each group's next update.
  // As torch's cycle_momentum.
  void schedule_momentum();
  // A kind of state may have been switched on, as momentum.
  void note_state();
  void update(const std::function<void(StepPart)>& told);
  void step_optimizer();
  void move_loss_scale(bool finite);
  // Without the loss scale, the mean of the window and clipped, or the optimizer's step will make them so. False: they
  // are not finite, which a loss scale or the guard forgives.
  bool make_gradients_ready();
  // Off the CPU, where a fault is an error and not a decision, they wait to be read with the losses.
  bool gradients_are_noted();
  bool is_to_be_kept(std::int64_t optimizer_steps) const {
    return rolls_back() && optimizer_steps % options.step_guard.keep_every == 0;
  }
  // After the next update.
  bool weights_are_checked() const { return options.step_guard.weights || is_to_be_kept(progress.optimizer_steps + 1); }
  // After an update. False: the guard has taken it back.
  bool weights_are_good();
  // Squares of large gradients are infinite while weights, divided by them, are not: nothing to return to.
  bool optimizer_is_good();

  // ---- Updates by operators and captured steps (trainer_device.cpp) ----
  // Whether nothing of an update must be known on the host before the next step. On the CPU it is for captured steps.
  bool updates_by_operators() const;
  // Of these, those whose bad batches the device leaves out itself.
  bool skips_by_operators() const { return options.step_guard.policy == GuardPolicy::skip && updates_by_operators(); }
  // Where policy skip has it that the update of a bad `loss` is left out, and buffers put back that its forward spoilt.
  at::Tensor step_by_operators(double factor, const at::Tensor& loss);
  // Queues what an update reads, where it has changed.
  void set_device_inputs();
  void update_by_operators();
  // Why steps are not captured, whatever their batch; empty: they are.
  std::string why_no_graph() const;
  // Beside what CaptureState sees.
  std::uint64_t settings() const;
  // nullptr: one too many.
  StepForm* form_of(const MovableBatch& batch);
  at::Tensor step_on(const MovableBatch& batch, std::int64_t samples, const std::function<void(StepPart)>& told,
                     bool last_of_window);
  // Leaves the form as it is where the step cannot be captured.
  void capture(StepForm& form, const MovableBatch& batch);
  void note_pools();
  at::Tensor replay(StepForm& form, const std::vector<at::Tensor>& tensors, std::int64_t samples);
};

}  // namespace headrace
