#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <headrace/autocast.h>
#include <headrace/clip_gradients.h>
#include <headrace/grad_scaler.h>
#include <headrace/trace.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/options/schedules.h"
#include "torch/device/accelerator.h"
#include "torch/tensor/kept_values.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/tensor/translate.h"
#include "torch/train/captured_step.h"
#include "torch/train/finite.h"
#include "torch/train/last_good_state.h"
#include "torch/train/lr_scheduler.h"
#include "torch/train/memory_layout.h"
#include "torch/train/micro_batch.h"
#include "torch/train/shown_averages.h"
#include "torch/train/step_figures.h"
#include "torch/train/trainer_accounts.h"
#include "torch/train/training_state.h"
#include "torch/train/weight_average.h"
#include "torch/train/window_update.h"

namespace headrace {
namespace {

constexpr std::int64_t kStepsBeforeCapture = 3;    // In which libraries choose kernels and set up what they keep.
constexpr std::size_t kForms = 8;                  // Of batches; those of further forms are moved by waiting.
constexpr double kLossScaleMin = 1.0 / (1 << 24);  // Gradients that are not finite at this scale are so at any.
constexpr double kLossScaleMax = 0x1p126;          // Its inverse is a normal float32.

LrSchedulerOptions checked(LrSchedulerOptions schedule) {
  check_lr_scheduler(schedule);
  return schedule;
}

RunLength run_length(std::int64_t steps, std::int64_t epochs) {
  if (epochs < 1) fail(ErrorCode::invalid_argument, "train: epochs: wanted at least 1, found {}", epochs);
  return {steps, epochs};
}

std::vector<at::Tensor> without_names(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

void check_precision(Precision precision, double loss_scale) {
  if (precision != Precision::fp16 || loss_scale > 0) return;
  fail(ErrorCode::invalid_argument,
       "train: loss_scale: wanted one above 0 with precision fp16, where small gradients become 0 without it, found {}",
       loss_scale);
}

// Of TrainOptions::memory_limit_mib.
std::int64_t limit_bytes(std::int64_t mib) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  if (mib >= 0 && mib <= kMost) return mib << 20;
  fail(ErrorCode::invalid_argument, "train: memory_limit_mib: wanted 0 to {}, found {}", kMost, mib);
}

std::optional<WeightAverage> average_of(const ModelState& model, const TrainOptions& options) {
  if (options.ema_decay == 0) return std::nullopt;
  return WeightAverage(model, options.ema_decay, options.ema_warmup);
}

// Operators are examined in its life, where the guard's options say so.
class ExaminedStep {
 public:
  explicit ExaminedStep(StepGuard& guard) : guard_(guard) { guard_.begin_step(); }
  ~ExaminedStep() { guard_.end_step(); }
  ExaminedStep(const ExaminedStep&) = delete;
  ExaminedStep& operator=(const ExaminedStep&) = delete;

 private:
  StepGuard& guard_;
};

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

// The tensors of a batch where `change` puts them, field by field.
template <class Change>
TensorBatch with_tensors(const TensorBatch& batch, const Change& change) {
  const auto changed = [&change](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  TensorBatch result;
  for (const TensorBatch::Field& field : batch.fields()) {
    result.add({.name = field.name,
                .values = changed(field.values),
                .offsets = changed(field.offsets),
                .shapes = changed(field.shapes),
                .present = changed(field.present)});
  }
  result.valid = changed(batch.valid);
  return result;
}

MovableBatch movable(const TensorBatch& batch, const Forward& forward) {
  MovableBatch made;
  const auto note = [&made](const at::Tensor& tensor) { return made.tensors.emplace_back(tensor); };
  with_tensors(batch, note);
  made.forward = [batch, forward](const std::vector<at::Tensor>& tensors) {
    std::size_t next = 0;
    return forward(with_tensors(batch, [&](const at::Tensor&) { return tensors[next++]; }));
  };
  return made;
}

class EvaluationMode {
 public:
  explicit EvaluationMode(const ModelState& model) : model_(model) { model_.set_training(false); }
  ~EvaluationMode() { model_.set_training(true); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  const ModelState& model_;
};

}  // namespace

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
  StepFigures figures{accelerator};
  std::vector<std::unique_ptr<StepForm>> forms;
  GraphReport graph;
  std::string why_not_captured{};  // What a capture threw: none is tried again.
  // What an update by operators reads on the device, and their values there.
  at::Tensor rates{}, average_weight{};
  std::vector<double> rates_there{};
  double average_weight_there = -1;
  std::optional<WeightAverage> average = average_of(model, options);
  StepGuard guard{model, options.step_guard};
  WindowNotes notes;
  const std::vector<at::Tensor> buffers = without_names(model.buffers);
  std::vector<at::Tensor> buffers_before;  // Their values before the forward, for policies that put them back.
  std::int64_t batch_at_hand = 0;          // Of the last step, in its epoch.
  LastGoodState last_good;
  const ExternalOptimizer* external = nullptr;  // The trainer's.
  WindowUpdate window_update{model, optimizer, options, average ? &*average : nullptr};
  TrainerAccounts accounts{model, averages(), rolls_back()};
  std::size_t state_count = 0;  // Tensors of optimizer state whose bytes the accounts have.
  HeldMemoryLimit memory_limit{};
  std::string last_out_of_memory{};

  const NamedTensors& averages() const {
    static const NamedTensors none;
    return average ? average->tensors() : none;
  }

  Output run_forward(const BoundForward& bound) const {
    at::autocast::clear_cache();       // Of a caller's scope around several steps: of weights as they were.
    std::optional<Autocast> autocast;  // Without: whatever the caller has.
    if (options.precision != Precision::fp32) {
      autocast.emplace(device.type(), options.precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
    }
    Output output = bound();
    if (!output.loss.defined() || output.loss.numel() != 1) {
      fail(
          ErrorCode::invalid_argument, "train: wanted a loss of one number from forward, found {}",
          output.loss.defined() ? fmt::format("a tensor of shape [{}]", fmt::join(output.loss.sizes(), ", ")) : "none");
    }
    if (output.samples.value_or(0) < 0) {
      fail(ErrorCode::invalid_argument, "train: wanted at least 0 samples from forward, found {}", *output.samples);
    }
    if (output.loss.dim() != 0) output.loss = output.loss.reshape({});
    // A loss scale is beyond float16's range; the backward makes infinities of it, which leave the update out.
    if (at::isReducedFloatingType(output.loss.scalar_type())) output.loss = output.loss.to(at::kFloat);
    return output;
  }

  // Refers to `batch`, whose tensors forward gets on the model's device.
  BoundForward bound(const TensorBatch& batch) const {
    if (!forward) fail(ErrorCode::invalid_argument, "train: this Trainer was made without a forward");
    return [this, &batch] { return device.is_cpu() ? forward(batch) : forward(moved(batch)); };
  }

  TensorBatch moved(const TensorBatch& batch) const {
    return with_tensors(batch, [this](const at::Tensor& tensor) { return tensor.to(device); });
  }

  // `scale` times the gradients: the same as to multiply the loss with it.
  void run_backward(const at::Tensor& loss, double scale) {
    if (!seed.defined() || seed_value != scale || !seed.options().type_equal(loss.options()) ||
        seed.device() != loss.device()) {
      seed = at::full({}, scale, loss.options().requires_grad(false));
      seed_value = scale;
    }
    try {
      loss.backward(seed);
    } catch (...) {
      renew_ready_queue();
      throw;
    }
  }

  void note_gradients() {
    if (!device.is_cpu()) return;  // Accounts are of host memory.
    std::int64_t held = 0;
    for (const auto& [name, parameter] : model.parameters) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const bool sparse = gradient.layout() == at::kSparse;
      held += static_cast<std::int64_t>(sparse ? gradient._values().nbytes() + gradient._indices().nbytes()
                                               : gradient.nbytes());
    }
    accounts.gradients.store(held, std::memory_order_relaxed);
  }

  bool rolls_back() const { return options.step_guard.policy == GuardPolicy::rollback; }

  // What multiplies the gradients of a micro-batch of this weight, which is above 0. At most 1: a heavier one makes
  // those before it smaller. Equal ones have 1 each, so that their window has the bits of a plain sum.
  double share_of(double weight) const { return weight / std::max(weight, progress.largest_weight); }

  // Counts it, and makes those before it smaller where it is heavier.
  void join_window(double weight) {
    const double share = share_of(weight);
    if (weight > progress.largest_weight) {
      const double shrink = progress.largest_weight / weight;
      if (progress.window_weight > 0) window_update.multiply_now(shrink);
      progress.window_weight *= shrink;
      progress.largest_weight = weight;
    }
    progress.window_weight += share;
  }

  // Takes off the loss scale and makes the mean of the window.
  double gradient_factor() const {
    const double weight = progress.window_weight > 0 ? progress.window_weight : 1.0;
    return 1.0 / (loss_scale().scale * weight);
  }

  // False: a loss was not finite, and the guard bore with it. On a device it waits, without its graph, where a fault is
  // an error and not a decision.
  bool note_loss(const at::Tensor& loss, std::int64_t samples) {
    if (!loss.is_cpu() && options.step_guard.policy == GuardPolicy::raise) {
      add_figure(loss.detach().clone(), progress.batch, samples, StepFigure::Kind::loss);
      return true;
    }
    read_figures();
    const double value = loss.scalar_type() == at::kFloat && loss.is_cpu()
                             ? static_cast<double>(*loss.const_data_ptr<float>())
                             : loss.item<double>();
    if (!std::isfinite(value)) {
      StepFault fault{.kind = FaultKind::loss, .value = value};
      if (std::optional<StepFault> named = guard.check_loss(loss)) fault = *named;
      fault.epoch = progress.epoch;
      fault.batch = progress.batch;
      return bear_with(fault);
    }
    add_loss(value, samples);
    return true;
  }

  void add_loss(double value, std::int64_t samples) {
    progress.loss_sum += value * static_cast<double>(samples);
    progress.loss_samples += samples;
  }

  void add_figure(at::Tensor values, std::int64_t batch, std::int64_t samples, StepFigure::Kind kind,
                  std::int64_t row = StepFigure::kWhole) {
    figures.add({std::move(values), progress.epoch, batch, samples, kind, row});
    if (figures.is_full()) figures.exchange([this](const StepFigureRead& read) { take(read); });
  }

  // All there are; waits for the device.
  void read_figures() {
    figures.read_all([this](const StepFigureRead& read) { take(read); });
  }

  // Of the policy raise alone, so that a fault throws.
  void take(const StepFigureRead& read) {
    const auto refuse = [&](FaultKind kind, double value, const std::string& tensor) {
      StepFault fault{.kind = kind, .value = value, .tensor = tensor};
      fault.epoch = read.of.epoch;
      fault.batch = read.of.batch;
      bear_with(fault);
    };
    const double* of_update = nullptr;
    switch (read.of.kind) {
      case StepFigure::Kind::largest_gradient:
        if (!std::isfinite(read.values[0])) refuse(FaultKind::gradient, read.values[0], "");
        return;
      case StepFigure::Kind::update:
        of_update = read.values;
        break;
      case StepFigure::Kind::step:
        of_update = read.values + 1;
        [[fallthrough]];
      case StepFigure::Kind::loss:
        if (!std::isfinite(read.values[0])) refuse(FaultKind::loss, read.values[0], "");
        add_loss(read.values[0], read.of.samples);
        if (of_update == nullptr) return;
        break;
    }
    const double norm = of_update[0], clipped = of_update[1], found_inf = of_update[2], place = of_update[3];
    if (found_inf != 0 && checks_gradients()) refuse(FaultKind::gradient, norm, window_update.gradient_at(place));
    if (clipped > 0) ++progress.clipped_updates;
    if (!window_update.clips()) return;
    notes.clip_report = {.norm_before = norm,
                         .norm_after = norm,
                         .clipped = static_cast<std::int64_t>(clipped),
                         .finite = found_inf == 0};
    if (options.max_grad_norm > 0 && options.grad_norm_per == GradNormPer::model) {
      notes.clip_report.norm_after = std::min(norm, options.max_grad_norm);
    }
  }

  bool checks_gradients() const { return options.step_guard.gradients || window_update.clips(); }

  StepFault here(StepFault fault) const {
    fault.epoch = progress.epoch;
    fault.batch = batch_at_hand;
    return fault;
  }

  // Does what the policy says, or throws. Returns whether what is there now may be used.
  bool bear_with(const StepFault& fault) {
    GuardCounts& counts = progress.guard;
    // First, as the decision may be an error. A micro-batch whose gradients stay keeps its buffers: replace mends them.
    const bool stays = fault.kind == FaultKind::activation && options.step_guard.policy == GuardPolicy::replace;
    const bool by_forward = fault.kind == FaultKind::loss || fault.kind == FaultKind::activation;
    if (by_forward && !stays && guard_needs_buffers()) put_values(model.buffers, buffers_before);
    guard.decide(fault, counts);
    notes.has_fault = true;
    switch (options.step_guard.policy) {
      case GuardPolicy::raise:
      case GuardPolicy::skip:
        ++counts.skipped;
        return false;
      case GuardPolicy::replace:
        guard.replace();
        ++counts.replaced;
        return fault.kind != FaultKind::loss;
      case GuardPolicy::lower_lr:
        counts.lr_factor *= options.step_guard.lr_factor;
        ++counts.lowered_lr;
        return false;
      case GuardPolicy::rollback:
        last_good.restore(rolled_back());
        ++counts.rolled_back;
        return false;
    }
    return false;
  }

  RolledBack rolled_back() { return {model, averages(), optimizer, *external, progress}; }

  void keep_state() {
    last_good.keep(rolled_back());
    accounts.kept.store(last_good.bytes(), std::memory_order_relaxed);
  }

  // What a rollback returns to.
  void have_last_good() {
    if (rolls_back() && !last_good.is_of(*external)) keep_state();
  }

  const Applied& set_memory_limit(std::int64_t bytes) {
    const Applied& applied = memory_limit.set(bytes, model);
    if (bytes > 0 && applied.reason.empty()) {
      count_training(model, averages(), optimizer);
      count_tensors(last_good.copies());
    }
    return applied;
  }

  bool halves() const { return options.on_out_of_memory == OutOfMemoryPolicy::halve; }

  // After a bad forward.
  bool guard_needs_buffers() const { return options.step_guard.policy != GuardPolicy::raise && !rolls_back(); }

  void before_forward() {
    have_last_good();
    if (model.buffers.empty() || (!guard_needs_buffers() && !halves())) return;
    c10::AutoGradMode no_graph(false);
    const auto is_alike = [](const at::Tensor& before, const at::Tensor& buffer) {
      return before.sizes() == buffer.sizes() && before.scalar_type() == buffer.scalar_type();
    };
    if (std::equal(buffers_before.begin(), buffers_before.end(), buffers.begin(), buffers.end(), is_alike)) {
      at::_foreach_copy_(buffers_before, buffers);
      return;
    }
    buffers_before.clear();
    for (const at::Tensor& buffer : buffers) buffers_before.push_back(buffer.detach().clone());
  }

  GradScalerState loss_scale() const {
    if (options.loss_scale == 0) return {.scale = 1.0};
    return {.scale = progress.loss_scale > 0 ? progress.loss_scale : options.loss_scale,
            .growth_tracker = progress.scale_good_updates};
  }

  double scheduled(double lr) const {
    return scheduled_lr(schedule, lr, progress.optimizer_steps, run, progress.plateau) * progress.guard.lr_factor;
  }

  // As torch's cycle_momentum.
  void schedule_momentum() {
    if (external->step) return;
    const std::optional<double> momentum = scheduled_momentum(schedule, progress.optimizer_steps, run);
    for (std::size_t group = 0; momentum && group < optimizer.groups(); ++group) {
      optimizer.set_momentum(*momentum, group);
    }
  }

  // A kind of state may have been switched on, as momentum.
  void note_state() {
    const std::size_t count = optimizer.state_count();
    if (std::exchange(state_count, count) == count) return;
    accounts.state.store(optimizer.is_on_cpu() ? optimizer.state_bytes() : 0, std::memory_order_relaxed);
  }

  // Also what a backward left in parameters that the optimizer has not.
  void drop_gradients() {
    for (const auto& [name, parameter] : model.parameters) {
      if (parameter.grad().defined()) parameter.mutable_grad().reset();
    }
    optimizer.zero_gradients();
    accounts.gradients.store(0, std::memory_order_relaxed);
  }

  void drop_window() {
    drop_gradients();
    progress.window = 0;
    progress.window_weight = progress.largest_weight = 0;
  }

  // As a window whose update was left out.
  void leave_out_window() {
    drop_window();
    ++progress.skipped_updates;
  }

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

  at::Tensor step(const StepBatch& batch, const std::function<void(StepPart)>& told, bool last_of_window) {
    if (options.cuda_graph && !batch.is_moved) {
      graph.reason = why_no_graph();
      if (graph.reason.empty()) graph.reason = "the step was given a forward without a batch that can be moved";
    }
    batch_at_hand = progress.batch;
    const std::int64_t micro_batch_before = progress.micro_batch, ran_out_before = progress.out_of_memory;
    if (batch.can_be_cut && progress.window == 0) grow_micro_batch(batch.samples);
    StepUnderWay under_way{told};
    try {
      std::int64_t begin = 0;
      do {
        const std::int64_t left = batch.samples - begin;
        const std::int64_t end = begin + (batch.can_be_cut ? part_size(left, progress.micro_batch) : left);
        if (compute_if_it_fits(batch, begin, end, under_way)) begin = end;
      } while (begin < batch.samples && !under_way.is_left_out);
      if (!under_way.is_left_out) {
        ++progress.window;
        if (progress.window >= options.gradient_accumulation_steps || last_of_window) update(told);
      }
    } catch (...) {
      if (under_way.has_begun) drop_window();  // Half-made gradients would spoil the next one.
      if (progress.out_of_memory == ran_out_before) progress.micro_batch = micro_batch_before;
      throw;
    }
    ++progress.batch;
    return under_way.mean_loss();
  }

  // Only where it is survived that the larger one is too large.
  void grow_micro_batch(std::int64_t samples) {
    if (halves() && progress.micro_batch_grows && progress.micro_batch < samples) progress.micro_batch *= 2;
  }

  // False: it did not, all is as it was before, and the micro-batch is smaller.
  bool compute_if_it_fits(const StepBatch& batch, std::int64_t begin, std::int64_t end, StepUnderWay& under_way) {
    before_forward();
    if (!halves()) {
      under_way.add(compute(batch.part(begin, end), begin == 0, under_way));
      return true;
    }
    if (!figures.has_room_for_one()) read_figures();  // Then none is read before the backward is done.
    const Progress before = progress;
    const std::size_t waiting_before = figures.waiting();
    const bool had_begun = under_way.has_begun;
    const at::Tensor generator = generator_state();
    std::string reason;
    try {
      under_way.add(compute(batch.part(begin, end), begin == 0, under_way));
      return true;
    } catch (...) {
      if (!under_way.is_computing) throw;
      const std::optional<std::string> found = out_of_memory_reason(std::current_exception());
      if (!found) throw;
      reason = *found;
    }  // The exception is gone, and with it what it may have held.
    progress = before;
    if (under_way.has_begun && progress.window_weight == 0) drop_gradients();  // Of this backward; there are no others.
    figures.drop_to(waiting_before);
    under_way.has_begun = had_begun;
    under_way.is_computing = false;
    if (!model.buffers.empty()) put_values(model.buffers, buffers_before);
    set_generator_state(generator);
    note_out_of_memory(batch, end - begin, reason);
    return false;
  }

  void note_out_of_memory(const StepBatch& batch, std::int64_t samples, const std::string& reason) {
    const std::string place = fmt::format("in epoch {}, batch {}, memory ran out with {} {} at once", progress.epoch,
                                          batch_at_hand, samples, samples == 1 ? "sample" : "samples");
    if (!batch.can_be_cut) {
      fail(ErrorCode::out_of_memory,
           "train: {}; on_out_of_memory \"halve\": wanted a batch or a forward that can be cut, found one forward for "
           "the whole: {}",
           place, reason);
    }
    if (samples < 2) fail(ErrorCode::out_of_memory, "train: {}: {}", place, reason);
    progress.micro_batch = (samples + 1) / 2;
    progress.micro_batch_grows = false;
    ++progress.out_of_memory;
    last_out_of_memory = fmt::format(
        "{}, from now on it is at most {}{}: {}", place, progress.micro_batch,
        has_running_statistics(model) ? ", on which the result of the model's BatchNorm depends" : "", reason);
  }

  // Forward and backward of a part of a batch; `is_first` of it.
  PartLoss compute(const BatchPart& part, bool is_first, StepUnderWay& under_way) {
    const ExaminedStep examined(guard);
    at::Tensor loss;
    std::int64_t counted = 0;
    double weight = 0;
    {
      Span span{step::kForward};
      under_way.tell_forward();
      under_way.is_computing = true;
      const Output output = run_forward(part.forward);
      under_way.is_computing = false;
      loss = output.loss;
      counted = output.samples.value_or(part.counted);
      weight = output.weight_or(counted);
    }
    PartLoss done{loss.detach(), weight};
    const bool opens_window = is_first && progress.window == 0;
    if (opens_window) notes.has_fault = false;
    const bool is_bad = weight > 0 && !note_loss(loss, counted);
    if (is_bad && options.step_guard.policy == GuardPolicy::replace) weight = 0;
    if (opens_window) drop_window();  // Gradients that whoever was before left.
    under_way.has_begun = true;
    if (is_bad && weight > 0) {
      leave_out_window();
      under_way.is_left_out = true;
    } else if (weight > 0) {
      // With a loss scale the backward may overflow and make NaN of that, which is no fault.
      const bool asks_before = options.loss_scale > 0;
      under_way.is_left_out = asks_before && !activations_are_good();
      if (under_way.is_left_out) return done;
      add_gradients_of(loss, weight, under_way);
      under_way.is_left_out = !asks_before && !activations_are_good();
    }
    return done;
  }

  // To those of the window.
  void add_gradients_of(const at::Tensor& loss, double weight, StepUnderWay& under_way) {
    Span span{step::kBackward};
    under_way.tell_backward();
    const double scale = loss_scale().scale * share_of(weight);
    if (halves() && progress.window_weight > 0) {
      const std::vector<at::Tensor> parameters = parameters_with_gradients();
      GradientsAside window{parameters};
      under_way.is_computing = true;
      run_backward(loss, scale);
      under_way.is_computing = false;
      std::vector<at::Tensor> made = window.put_back();
      join_window(weight);
      add_to_gradients(parameters, std::move(made));
    } else {
      join_window(weight);
      under_way.is_computing = true;
      run_backward(loss, scale);
      under_way.is_computing = false;
    }
    note_gradients();
  }

  // That a backward may give one: the model's, and the optimizer's, which may be others; most of them twice.
  std::vector<at::Tensor> parameters_with_gradients() const {
    std::vector<at::Tensor> parameters;
    for (const NamedTensors* some : {&model.parameters, &optimizer.parameters()}) {
      for (const auto& [name, parameter] : *some) {
        if (parameter.requires_grad()) parameters.push_back(parameter);
      }
    }
    return parameters;
  }

  void update(const std::function<void(StepPart)>& told) {
    Span span{step::kOptimizer};
    if (progress.window_weight == 0) return leave_out_window();          // None of its micro-batches counts.
    if (told) std::function<void(StepPart)>{told}(StepPart::optimizer);  // Of a copy: it may put another in its place.
    if (updates_by_operators()) return update_by_operators();
    const bool finite = make_gradients_ready();
    if (finite) step_optimizer();
    if (options.loss_scale > 0) move_loss_scale(finite);
    if (!finite || !weights_are_good()) return leave_out_window();
    // Those that the optimizer did not move.
    if (average) average->update(progress.optimizer_steps + 1, /*all=*/weights_are_checked() || external->step);
    drop_window();
    ++progress.optimizer_steps;
    if (notes.clip_report.clipped > 0) ++progress.clipped_updates;
    if (!notes.has_fault) progress.guard.in_a_row = 0;
    if (is_to_be_kept(progress.optimizer_steps) && optimizer_is_good()) keep_state();
  }

  // Whether nothing of an update must be known on the host before the next step. On the CPU it is for captured steps.
  bool updates_by_operators() const {
    if (device.is_cpu() && !(options.cuda_graph && accelerator != nullptr && accelerator->captures())) return false;
    if (external->step || options.loss_scale > 0 || options.clip_grad_ratio > 0) return false;
    if (options.step_guard.policy != GuardPolicy::raise || options.step_guard.weights) return false;
    for (std::size_t i = 0; device.is_cpu() && i < optimizer.groups(); ++i) {
      if (!Optimizer::why_not_on_device(optimizer.options(i)).empty()) return false;
    }
    return true;
  }

  // Queues what an update reads, where it has changed.
  void set_device_inputs() {
    const auto on_device = at::TensorOptions(at::kFloat).device(device);
    std::vector<double> now;
    for (std::size_t i = 0; i < optimizer.groups(); ++i) {
      now.push_back(scheduled(optimizer.options(i).lr) * optimizer.lr_mult(i));
    }
    c10::AutoGradMode no_graph(false);
    if (rates_there.size() != now.size()) rates = at::empty({static_cast<std::int64_t>(now.size())}, on_device);
    if (now != rates_there && now.size() == 1) {
      rates.fill_(now.front());
    } else if (now != rates_there) {
      // Page-locked, so that the copy is not waited for.
      const at::Tensor host = at::empty({static_cast<std::int64_t>(now.size())},
                                        at::TensorOptions(at::kFloat).pinned_memory(device.is_cuda()));
      std::copy(now.begin(), now.end(), host.mutable_data_ptr<float>());
      rates.copy_(host, /*non_blocking=*/true);
    }
    rates_there = std::move(now);
    if (!average) return;
    const double weight = 1 - average->decay(progress.optimizer_steps + 1);
    if (!average_weight.defined()) average_weight = at::empty({}, on_device);
    if (weight != average_weight_there) average_weight.fill_(weight);
    average_weight_there = weight;
  }

  void update_by_operators() {
    schedule_momentum();
    set_device_inputs();
    add_figure(window_update.step_by_operators(gradient_factor(), checks_gradients(), rates, average_weight),
               batch_at_hand, 0, StepFigure::Kind::update);
    note_state();
    at::autocast::clear_cache();
    drop_window();
    ++progress.optimizer_steps;
  }

  // Why steps are not captured, whatever their batch; empty: they are.
  std::string why_no_graph() const {
    if (!options.cuda_graph) return "cuda_graph is off";
    if (accelerator == nullptr) return why_no_accelerator;
    if (!accelerator->captures()) return "the model is on the CPU";
    if (external->step) return external->name + " makes the update itself";
    if (options.loss_scale > 0) return "the host decides by each update's gradients on its loss_scale";
    if (options.gradient_accumulation_steps > 1) return "gradient_accumulation_steps is above 1";
    if (options.clip_grad_ratio > 0) return "clip_grad_ratio is not captured";
    if (options.step_guard.policy != GuardPolicy::raise || options.step_guard.weights ||
        options.step_guard.detect_anomaly) {
      return "step_guard looks at each step before the next one: wanted policy \"raise\" without weights and "
             "detect_anomaly";
    }
    if (halves() || progress.micro_batch > 0) return "batches may be computed in parts";
    if (scheduled_momentum(schedule, progress.optimizer_steps, run)) return "the schedule moves momentum";
    for (std::size_t i = 0; i < optimizer.groups(); ++i) {
      const std::string kind = Optimizer::why_not_on_device(optimizer.options(i));
      if (!kind.empty()) return kind + " is not captured";
    }
    return why_not_captured;
  }

  // Beside what StepFoundation sees.
  std::uint64_t settings() const {
    return static_cast<std::uint64_t>(options.precision) * 2 + (memory_format == MemoryFormat::channels_last ? 1 : 0);
  }

  // nullptr: one too many.
  StepForm* form_of(const std::vector<at::Tensor>& tensors) {
    for (const std::unique_ptr<StepForm>& form : forms) {
      if (form->is_of(tensors)) return form.get();
    }
    if (forms.size() == kForms) return nullptr;
    return forms.emplace_back(std::make_unique<StepForm>(tensors, device, accelerator)).get();
  }

  at::Tensor step_on(const MovableBatch& batch, std::int64_t samples, const std::function<void(StepPart)>& told,
                     bool last_of_window) {
    StepForm* const form = form_of(batch.tensors);
    graph.reason = why_no_graph();
    if (graph.reason.empty() && form == nullptr) {
      graph.reason = fmt::format("batches have had {} forms before this one", kForms);
    }
    if (graph.reason.empty() && batch.tensors.empty()) graph.reason = "the batch holds no tensor";
    if (graph.reason.empty() && progress.window > 0) graph.reason = "a window was open";
    if (graph.reason.empty()) {
      if (form->is_captured() && !form->stands_on(model, optimizer, settings())) {
        form->forget_capture();
        form->steps = 0;  // What libraries keep for a kernel may be another's now.
        note_pools();
      }
      if (!form->is_captured() && form->steps >= kStepsBeforeCapture) capture(*form, batch);
      if (form->is_captured()) return replay(*form, batch.tensors, samples);
    }
    const bool prepares = graph.reason.empty();
    if (prepares) {
      graph.reason = fmt::format("of this form of batch {} steps are made before one is captured", kStepsBeforeCapture);
    }
    std::vector<at::Tensor> there;
    {
      Span span{step::kTransfer};
      if (form != nullptr) {
        there = form->moved(batch.tensors);
      } else {
        for (const at::Tensor& tensor : batch.tensors) there.push_back(tensor.to(device));
      }
    }
    const auto part = [&](std::int64_t, std::int64_t) -> BatchPart {
      return {[&] { return batch.forward(there); }, samples};
    };
    at::Tensor loss;
    const auto make = [&] {
      loss = step({std::ref(part), samples, /*can_be_cut=*/false, /*is_moved=*/true}, told, last_of_window);
    };
    if (prepares && form->steps + 1 == kStepsBeforeCapture) {
      accelerator->run_aside(make);
    } else {
      make();
    }
    if (form != nullptr) ++form->steps;
    return loss;
  }

  // Leaves the form as it is where the step cannot be captured.
  void capture(StepForm& form, const MovableBatch& batch) {
    schedule_momentum();
    set_device_inputs();
    drop_window();  // Gradients that whoever was before left.
    // Whose memory the captured step reads: what replaces them must not free it.
    const auto work = [this, forward = batch.forward,
                       held = std::vector{rates, average_weight, seed}](const std::vector<at::Tensor>& tensors) {
      const Output output = run_forward([&] { return forward(tensors); });
      if (output.weight || output.samples) {
        fail(ErrorCode::unsupported, "train: forward returns a weight or samples, which the host reads");
      }
      run_backward(output.loss, 1.0);
      const at::Tensor of_update = window_update.step_by_operators(1.0, checks_gradients(), rates, average_weight);
      drop_gradients();
      at::autocast::clear_cache();
      c10::AutoGradMode no_graph(false);
      const at::Tensor loss = output.loss.detach().to(at::kFloat).reshape({1});
      return at::cat({loss, of_update, loss});  // Whoever gets the last one may write to it.
    };
    try {
      form.capture(batch.tensors, StepFoundation(model, optimizer, settings()), work);
    } catch (...) {
      drop_window();
      at::autocast::clear_cache();
      seed.reset();
      const Error error = translate(std::current_exception());
      if (std::string_view(error.what()).find("KeyboardInterrupt") != std::string_view::npos) throw;
      graph.reason = why_not_captured = error.what();
    }
    note_pools();
  }

  void note_pools() {
    graph.pool_bytes = 0;
    for (const std::unique_ptr<StepForm>& form : forms) graph.pool_bytes += form->pool_bytes();
  }

  at::Tensor replay(StepForm& form, const std::vector<at::Tensor>& tensors, std::int64_t samples) {
    batch_at_hand = progress.batch;
    drop_gradients();  // That whoever was before left.
    set_device_inputs();
    const auto [block, row] = form.replay(tensors);
    at::autocast::clear_cache();
    add_figure(block, batch_at_hand, samples, StepFigure::Kind::step, row);
    ++progress.batch;
    ++progress.optimizer_steps;
    ++graph.replays;
    const std::int64_t width = block.size(1);
    return block.as_strided({}, {}, row * width + width - 1);
  }

  void step_optimizer() {
    const auto rate = [this](double lr) { return scheduled(lr); };
    if (external->step) {
      external->step(rate);
    } else {
      schedule_momentum();
      std::optional<double> average_decay;  // None: an average must not follow a weight that may be bad.
      if (average && !weights_are_checked()) average_decay = average->decay(progress.optimizer_steps + 1);
      window_update.step(rate, average_decay);
    }
    note_state();
    at::autocast::clear_cache();  // Whoever computes next in a caller's scope casts the new weights.
  }

  void move_loss_scale(bool finite) {
    const GradScalerState now = loss_scale(), next = now.after(/*found_inf=*/!finite);
    if (!finite && next.scale <= kLossScaleMin) {
      fail(ErrorCode::numerics, "train: the gradients are not finite, down to a loss scale of {}", now.scale);
    }
    progress.loss_scale = std::min(next.scale, kLossScaleMax);
    progress.scale_good_updates = next.growth_tracker;
  }

  // Without the loss scale, the mean of the window and clipped, or the optimizer's step will make them so. False: they
  // are not finite, which a loss scale or the guard forgives.
  bool make_gradients_ready() {
    const double factor = gradient_factor();
    const bool is_external = static_cast<bool>(external->step);
    if (!window_update.clips() && options.loss_scale == 0) {
      if (options.step_guard.gradients && !gradients_are_noted()) {
        const std::optional<StepFault> fault = guard.check_gradients(window_update.parameters());
        if (fault && !bear_with(here(*fault))) return false;
      }
      window_update.multiply(factor, is_external);
      return true;
    }
    ClipReport& report = notes.clip_report;
    report = window_update.clip(factor, is_external);
    if (report.finite || options.loss_scale > 0) return report.finite;
    const StepFault unnamed{.kind = FaultKind::gradient, .value = report.norm_before};
    if (!bear_with(here(guard.check_gradients(window_update.parameters()).value_or(unnamed)))) return false;
    report = window_update.clip(factor, is_external);
    return report.finite;
  }

  // Off the CPU, where a fault is an error and not a decision, they wait to be read with the losses.
  bool gradients_are_noted() {
    const NamedTensors& updated = window_update.parameters();
    if (options.step_guard.policy != GuardPolicy::raise || updated.empty() || updated.front().second.is_cpu())
      return false;
    const std::vector<at::Tensor> all = window_update.gradients();
    if (all.empty()) return true;
    c10::AutoGradMode no_graph(false);
    const at::Tensor largest = at::stack(at::_foreach_norm(all, std::numeric_limits<double>::infinity())).max();
    add_figure(largest, batch_at_hand, 0, StepFigure::Kind::largest_gradient);
    return true;
  }

  bool is_to_be_kept(std::int64_t optimizer_steps) const {
    return rolls_back() && optimizer_steps % options.step_guard.keep_every == 0;
  }

  // After the next update.
  bool weights_are_checked() const { return options.step_guard.weights || is_to_be_kept(progress.optimizer_steps + 1); }

  // After an update. False: the guard has taken it back.
  bool weights_are_good() {
    if (!weights_are_checked()) return true;
    const std::optional<StepFault> fault = guard.check_weights();
    return !fault || bear_with(here(*fault));
  }

  // Squares of large gradients are infinite while weights, divided by them, are not: nothing to return to.
  bool optimizer_is_good() {
    const NamedTensors state = optimizer.state();
    return std::all_of(state.begin(), state.end(), [](const auto& named) { return is_finite(named.second); });
  }

  // False: what an operator gave was NaN, and the guard left its window out.
  bool activations_are_good() {
    const std::optional<StepFault> fault = guard.check_activations();
    if (!fault || bear_with(here(*fault))) return true;
    leave_out_window();
    return false;
  }
};

Trainer::Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options,
                 LrSchedulerOptions schedule, std::int64_t optimizer_steps_total)
    : impl_(new Impl{std::move(model), std::move(optimizer), std::move(forward), options, checked(std::move(schedule)),
                     run_length(optimizer_steps_total, options.epochs)}) {
  impl_->external = &external_optimizer;
  if (!impl_->model.set_training) fail(ErrorCode::invalid_argument, "train: a Trainer needs a model with set_training");
  check_precision(options.precision, options.loss_scale);
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
  impl_->model.set_training(true);
  schedule_momentum();  // Or its state would not be there for a checkpoint to be loaded.
  if (const std::int64_t limit = limit_bytes(options.memory_limit_mib); limit > 0) impl_->set_memory_limit(limit);
}

Trainer::~Trainer() = default;

double Output::weight_or(std::int64_t samples) const {
  const double found = weight.value_or(static_cast<double>(samples));
  if (std::isfinite(found) && found >= 0) return found;
  fail(ErrorCode::invalid_argument, "train: wanted a weight of at least 0 from forward, found {}", found);
}

at::Tensor Trainer::step(const TensorBatch& batch, bool last_of_window) {
  const bool may_be_cut = impl_->halves() || impl_->progress.micro_batch > 0;
  if ((!impl_->device.is_cpu() || impl_->options.cuda_graph) && !may_be_cut) {
    if (!impl_->forward) impl_->bound(batch);  // Throws.
    return impl_->step_on(movable(batch, impl_->forward), batch.counted(), on_part, last_of_window);
  }
  const BoundForward whole = impl_->bound(batch);
  const std::int64_t samples = batch.size();
  const auto part = [&](std::int64_t begin, std::int64_t end) -> BatchPart {
    if (end - begin == samples) return {whole, batch.counted()};
    auto some = std::make_shared<const TensorBatch>(batch.part(begin, end));
    return {[this, some] { return impl_->bound(*some)(); }, some->counted()};
  };
  return impl_->step({std::ref(part), samples, /*can_be_cut=*/true}, on_part, last_of_window);
}

at::Tensor Trainer::step(const BoundForward& forward, std::int64_t samples, bool last_of_window) {
  const auto part = [&](std::int64_t, std::int64_t) -> BatchPart { return {[&] { return forward(); }, samples}; };
  return impl_->step({std::ref(part), samples, /*can_be_cut=*/false}, on_part, last_of_window);
}

at::Tensor Trainer::step(const PartForward& forward, std::int64_t samples, bool last_of_window) {
  if (samples < 1) fail(ErrorCode::invalid_argument, "train: step: samples: wanted at least 1, found {}", samples);
  const auto part = [&](std::int64_t begin, std::int64_t end) -> BatchPart {
    return {[&forward, begin, end] { return forward(begin, end); }, end - begin};
  };
  return impl_->step({std::ref(part), samples, /*can_be_cut=*/true}, on_part, last_of_window);
}

at::Tensor Trainer::step(const MovableBatch& batch, std::int64_t samples, bool last_of_window) {
  return impl_->step_on(batch, samples, on_part, last_of_window);
}

at::Tensor Trainer::step(const Batch& batch, bool last_of_window) {
  return step(transfer(batch), last_of_window);
}

void Trainer::finish_window() {
  if (impl_->progress.window == 0) return;
  impl_->have_last_good();
  impl_->or_drop_window([this] { impl_->update(on_part); });
}

TensorBatch Trainer::transfer(const Batch& batch) const {
  Span span{step::kTransfer};
  if (on_part) on_part(StepPart::transfer);
  return tensors_of(batch, impl_->memory_format);
}

Output Trainer::forward_backward(const TensorBatch& batch) {
  return forward_backward(impl_->bound(batch));
}

Output Trainer::forward_backward(const BoundForward& forward) {
  impl_->drop_window();
  Output output = impl_->run_forward(forward);
  impl_->run_backward(output.loss, 1.0);
  impl_->note_gradients();
  return output;
}

std::optional<double> Trainer::mean_loss() {
  impl_->read_figures();
  const Progress& progress = impl_->progress;
  if (progress.loss_samples == 0) return std::nullopt;
  return progress.loss_sum / static_cast<double>(progress.loss_samples);
}

std::optional<double> Trainer::take_mean_loss() {
  const std::optional<double> mean = mean_loss();
  impl_->progress.loss_sum = 0;
  impl_->progress.loss_samples = 0;
  return mean;
}

Output Trainer::evaluate(const TensorBatch& batch, const Forward& forward) {
  if (!forward) return evaluate(impl_->bound(batch));
  return evaluate([&] { return impl_->device.is_cpu() ? forward(batch) : forward(impl_->moved(batch)); });
}

Output Trainer::evaluate(const BoundForward& forward) {
  c10::AutoGradMode no_graph(false);
  EvaluationMode evaluation(impl_->model);
  return impl_->run_forward(forward);
}

const std::vector<std::pair<std::string, at::Tensor>>& Trainer::averages() const {
  return impl_->averages();
}

void Trainer::with_averages(const std::function<void()>& work) {
  const ShownAverages shown{*this};
  work();
}

void Trainer::set_run_length(std::int64_t optimizer_steps_total, std::int64_t epochs) {
  impl_->run = run_length(optimizer_steps_total, epochs);
}

void Trainer::schedule_momentum() {
  impl_->schedule_momentum();
  impl_->note_state();
}

void Trainer::set_precision(Precision precision) {
  check_precision(precision, impl_->options.loss_scale);
  impl_->options.precision = precision;
}

void Trainer::set_memory_format(MemoryFormat format) {
  c10::AutoGradMode no_graph(false);
  const auto convert = [format](const at::Tensor& tensor) {
    if (tensor.dim() == 4) tensor.set_data(in_layout(tensor.detach(), format));
  };
  for (const auto& [name, parameter] : impl_->model.parameters) {
    convert(parameter);
    if (parameter.grad().defined()) convert(parameter.grad());
  }
  for (const auto& [name, tensor] : impl_->optimizer.state()) convert(tensor);
  impl_->accounts.state.store(impl_->optimizer.is_on_cpu() ? impl_->optimizer.state_bytes() : 0,
                              std::memory_order_relaxed);
  if (impl_->average) impl_->average->lay_like_weights();
  impl_->memory_format = format;
}

const Applied& Trainer::set_memory_limit(std::int64_t bytes) {
  const std::int64_t before = tensor_memory_limit();
  const Applied& applied = impl_->set_memory_limit(bytes);
  if (bytes > 0 && !applied.reason.empty()) return applied;
  const std::int64_t now = tensor_memory_limit();
  Progress& progress = impl_->progress;
  if (now == 0 || (before > 0 && now > before)) {
    progress.micro_batch_grows = progress.micro_batch > 0;
  } else if (now != before) {
    progress.micro_batch_grows = false;
  }
  return applied;
}

const Applied& Trainer::applied_memory_limit() const {
  return impl_->memory_limit.applied();
}

const std::string& Trainer::last_out_of_memory() const {
  return impl_->last_out_of_memory;
}

ModelState& Trainer::model() {
  return impl_->model;
}
Optimizer& Trainer::optimizer() {
  return impl_->optimizer;
}
Progress& Trainer::progress() {
  return impl_->progress;
}
const TrainOptions& Trainer::options() const {
  return impl_->options;
}
const StepGuard& Trainer::guard() const {
  return impl_->guard;
}
const std::vector<std::pair<std::string, at::Tensor>>& Trainer::last_good_state() const {
  return impl_->last_good.copies();
}
void Trainer::set_last_good_state(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  if (!impl_->rolls_back()) return;
  if (external_optimizer.step) tensors.clear();  // They say nothing of its state then.
  impl_->last_good.set(std::move(tensors));
  impl_->accounts.kept.store(impl_->last_good.bytes(), std::memory_order_relaxed);
}
const WindowNotes& Trainer::window_notes() const {
  return impl_->notes;
}
void Trainer::set_window_notes(const WindowNotes& notes) {
  impl_->notes = notes;
  impl_->note_gradients();
}
const ClipReport& Trainer::clip_report() const {
  return impl_->notes.clip_report;
}
const GraphReport& Trainer::graph_report() const {
  return impl_->graph;
}
double Trainer::loss_scale() const {
  return impl_->loss_scale().scale;
}
double Trainer::gradient_factor() const {
  return impl_->gradient_factor();
}
double Trainer::learning_rate() const {
  return impl_->scheduled(impl_->optimizer.options().lr);
}

}  // namespace headrace
