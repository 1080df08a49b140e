#include <ATen/Context.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <headrace/autocast.h>
#include <headrace/clip_gradients.h>
#include <headrace/grad_scaler.h>
#include <headrace/trace.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/memory/accounts.h"
#include "torch/tensor/batch_tensor.h"
#include "torch/tensor/kept_values.h"
#include "torch/tensor/tensor_allocations.h"
#include "torch/train/last_good_state.h"
#include "torch/train/lr_scheduler.h"
#include "torch/train/shown_averages.h"
#include "torch/train/training_state.h"
#include "torch/train/weight_average.h"

namespace headrace {
namespace {

constexpr std::size_t kFiguresUnread = 50;  // Off the CPU: figures that wait to be read together.
constexpr std::int64_t kTop5 = 5;
constexpr double kLossScaleMin = 1.0 / (1 << 24);  // Gradients that are not finite at this scale are so at any.
constexpr const char* kLossScale = "loss_scale";   // In a last good state: the scale, and its good updates.

at::MemoryFormat torch_format(MemoryFormat format) {
  return format == MemoryFormat::channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

// `tensor` (4-D) in that layout. Not Tensor::contiguous: with one channel or one pixel both layouts are the same bytes,
// so it would keep the strides, and operators choose their kernel by the strides.
at::Tensor in_layout(const at::Tensor& tensor, at::MemoryFormat format) {
  const std::int64_t channels = tensor.size(1), height = tensor.size(2), width = tensor.size(3);
  if (channels == 1 && tensor.is_contiguous()) {
    const bool last = format == at::MemoryFormat::ChannelsLast;
    return at::as_strided(tensor, tensor.sizes(), {height * width, last ? 1 : height * width, width, 1},
                          tensor.storage_offset());
  }
  return tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false, format);
}

// Parameters and buffers, each storage once, however many of them share it.
std::int64_t bytes_of(const ModelState& model) {
  std::int64_t bytes = 0;
  std::unordered_set<const void*> known;
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const at::Storage& storage = tensor.storage();
      if (known.insert(storage.unsafeGetStorageImpl()).second) bytes += static_cast<std::int64_t>(storage.nbytes());
    }
  }
  return bytes;
}

std::optional<WeightAverage> average_of(const ModelState& model, const TrainOptions& options) {
  if (options.ema_decay == 0) return std::nullopt;
  return WeightAverage(model, options.ema_decay, options.ema_warmup);
}

// Samples of the batch that count and are right.
std::int64_t count_right(const TensorBatch& batch, const at::Tensor& is_right) {
  const at::Tensor counted = batch.valid.defined() ? is_right.logical_and(batch.valid) : is_right;
  return counted.sum().item<std::int64_t>();
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
  // Finite if the step was good.
  struct Figure {
    at::Tensor value;  // Scalar: a loss, or the largest element of the gradients.
    std::int64_t epoch, batch, samples;
    FaultKind kind = FaultKind::loss;
  };

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
  std::vector<Figure> unread;
  double window_weight = 0;  // Of its micro-batches together, as multiples of the first one's...
  double first_weight = 0;   // ...which is this; 0: no micro-batch of any weight yet.
  std::optional<WeightAverage> average = average_of(model, options);
  StepGuard guard{model, options.step_guard};
  ClipOptions clip = clip_options(options);
  ClipReport clip_report;                  // Of the last window.
  bool fault_in_window = false;            // What the guard bore with is no good update.
  std::vector<at::Tensor> buffers_before;  // Their values before the forward, for policies that put them back.
  LastGoodState last_good;
  std::function<void()> put_back_external;      // Of the same moment.
  const ExternalOptimizer* external = nullptr;  // The trainer's.

  // Bytes, for whoever asks while this thread works.
  std::atomic<std::int64_t> gradients_held{0}, state_held{optimizer.state_bytes()}, kept_held{0};
  const std::int64_t model_bytes = bytes_of(model), average_bytes = average ? bytes_of(average->tensors()) : 0;
  const Account model_account{"parameters", [this] { return model_bytes; }};
  const Account gradient_account{"gradients", [this] { return gradients_held.load(std::memory_order_relaxed); }};
  const Account state_account{"optimizer", [this] { return state_held.load(std::memory_order_relaxed); }};

  std::optional<Account> average_account, kept_account, activation_account;

  void count_averages() {
    if (average) average_account.emplace("averages", [this] { return average_bytes; });
  }

  void count_kept_state() {
    if (!rolls_back()) return;
    kept_account.emplace("last good state", [this] { return kept_held.load(std::memory_order_relaxed); });
  }

  // Where tensors are counted: those that are none of the above. A step's results and buffers, for the most part.
  void count_activations() {
    if (!TensorAllocations::bytes()) return;
    activation_account.emplace("activations", [this] {
      const std::int64_t known = model_bytes + average_bytes + gradients_held.load(std::memory_order_relaxed) +
                                 state_held.load(std::memory_order_relaxed) + kept_held.load(std::memory_order_relaxed);
      return std::max<std::int64_t>(TensorAllocations::bytes().value_or(0) - known, 0);
    });
  }

  Output run_forward(const BoundForward& bound) const {
    std::optional<Autocast> autocast;  // Without: whatever the caller has.
    if (options.precision != Precision::fp32) {
      const auto& tensors = model.parameters;
      const at::DeviceType device = tensors.empty() ? at::kCPU : tensors.front().second.device().type();
      autocast.emplace(device, options.precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
    }
    Output output = bound();
    if (!output.loss.defined() || output.loss.numel() != 1) {
      fail(
          ErrorCode::invalid_argument, "train: wanted a loss of one number from forward, found {}",
          output.loss.defined() ? fmt::format("a tensor of shape [{}]", fmt::join(output.loss.sizes(), ", ")) : "none");
    }
    if (output.loss.dim() != 0) output.loss = output.loss.reshape({});
    return output;
  }

  // Refers to `batch`.
  BoundForward bound(const TensorBatch& batch) const {
    if (!forward) fail(ErrorCode::invalid_argument, "train: this Trainer was made without a forward");
    return [this, &batch] { return forward(batch); };
  }

  // `scale` times the gradients: the same as to multiply the loss with it.
  void run_backward(const at::Tensor& loss, double scale) {
    if (!seed.defined() || seed_value != scale || !seed.options().type_equal(loss.options()) ||
        seed.device() != loss.device()) {
      seed = at::full({}, scale, loss.options().requires_grad(false));
      seed_value = scale;
    }
    loss.backward(seed);
    std::int64_t held = 0;
    for (const auto& [name, parameter] : model.parameters) {
      if (parameter.grad().defined()) held += static_cast<std::int64_t>(parameter.grad().nbytes());
    }
    gradients_held.store(held, std::memory_order_relaxed);
  }

  bool rolls_back() const { return options.step_guard.policy == GuardPolicy::rollback; }

  // What a micro-batch counts in its window.
  static double weight_of(const Output& output, std::int64_t samples) {
    const double weight = output.weight.value_or(static_cast<double>(samples));
    if (std::isfinite(weight) && weight >= 0) return weight;
    fail(ErrorCode::invalid_argument, "train: wanted a weight of at least 0 from forward, found {}", weight);
  }

  // What multiplies the gradients of a micro-batch of this weight, which is above 0. Equal ones have 1 each, so that
  // their window has the bits of a plain sum.
  double join_window(double weight) {
    if (first_weight == 0) first_weight = weight;
    const double factor = weight / first_weight;
    window_weight += factor;
    return factor;
  }

  // False: a loss was not finite, and the guard bore with it.
  bool note_loss(const at::Tensor& loss, std::int64_t samples) {
    unread.push_back({loss, progress.epoch, progress.batch, samples});
    const bool wanted_now = loss.is_cpu() || options.step_guard.policy != GuardPolicy::raise;
    return (!wanted_now && unread.size() < kFiguresUnread) || read_losses();
  }

  bool read_losses() {
    for (const Figure& figure : unread) {
      const double value = figure.value.scalar_type() == at::kFloat && figure.value.is_cpu()
                               ? static_cast<double>(*figure.value.const_data_ptr<float>())
                               : figure.value.item<double>();
      if (!std::isfinite(value)) {
        const Figure bad = figure;
        unread.clear();
        return bear_with(fault_of(bad, value));
      }
      if (figure.kind != FaultKind::loss) continue;
      progress.loss_sum += value * static_cast<double>(figure.samples);
      progress.loss_samples += figure.samples;
    }
    unread.clear();
    return true;
  }

  // Weights and operators explain the newest loss; what waited may be older than they are.
  StepFault fault_of(const Figure& bad, double value) {
    StepFault fault{.kind = bad.kind, .value = value};
    const bool is_newest = bad.kind == FaultKind::loss && bad.epoch == progress.epoch && bad.batch == progress.batch;
    if (std::optional<StepFault> named = is_newest ? guard.check_loss(bad.value) : std::nullopt) fault = *named;
    fault.epoch = bad.epoch;
    fault.batch = bad.batch;
    return fault;
  }

  StepFault here(StepFault fault) const {
    fault.epoch = progress.epoch;
    fault.batch = progress.batch;
    return fault;
  }

  // Does what the policy says, or throws. Returns whether what is there now may be used.
  bool bear_with(const StepFault& fault) {
    GuardCounts& counts = progress.guard;
    guard.decide(fault, counts);
    fault_in_window = true;
    const bool by_forward = fault.kind == FaultKind::loss || fault.kind == FaultKind::activation;
    if (by_forward && !buffers_before.empty()) put_values(model.buffers, buffers_before);
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
        roll_back();
        ++counts.rolled_back;
        return false;
    }
    return false;
  }

  NamedTensors state_tensors() {
    static const NamedTensors none;
    return training_tensors(model, average ? average->tensors() : none, optimizer);
  }

  void keep_state() {
    NamedTensors tensors = state_tensors();
    tensors.emplace_back(kGenerator, generator_state());
    tensors.emplace_back(
        kLossScale, at::tensor({progress.loss_scale, static_cast<double>(progress.scale_good_updates)}, at::kDouble));
    last_good.keep(tensors);
    if (external->step) put_back_external = external->keep_state();
    kept_held.store(last_good.bytes(), std::memory_order_relaxed);
  }

  void roll_back() {
    NamedTensors tensors = state_tensors();
    tensors.emplace_back(kGenerator, generator_state());
    tensors.emplace_back(kLossScale, at::zeros({2}, at::kDouble));
    last_good.restore(tensors);
    if (external->step && put_back_external) put_back_external();
    set_generator_state(tensors[tensors.size() - 2].second);
    const double* scale = tensors.back().second.const_data_ptr<double>();
    progress.loss_scale = scale[0];
    progress.scale_good_updates = static_cast<std::int64_t>(scale[1]);
  }

  void before_forward() {
    if (rolls_back() && last_good.empty()) keep_state();
    if (options.step_guard.policy == GuardPolicy::raise || rolls_back() || model.buffers.empty()) return;
    c10::AutoGradMode no_graph(false);
    buffers_before.resize(model.buffers.size());
    for (std::size_t i = 0; i < model.buffers.size(); ++i) {
      const at::Tensor& buffer = model.buffers[i].second;
      at::Tensor& before = buffers_before[i];
      if (before.defined() && before.sizes() == buffer.sizes()) {
        before.copy_(buffer);
      } else {
        before = buffer.detach().clone();
      }
    }
  }

  GradScalerState loss_scale() const {
    if (options.loss_scale == 0) return {.scale = 1.0};
    return {.scale = progress.loss_scale > 0 ? progress.loss_scale : options.loss_scale,
            .growth_tracker = progress.scale_good_updates};
  }

  double scheduled(double lr) const {
    return scheduled_lr(schedule, lr, progress.optimizer_steps, run, progress.plateau) * progress.guard.lr_factor;
  }

  // As torch's cycle_momentum: of what has betas the first of them.
  void schedule_momentum() {
    const std::optional<double> momentum = scheduled_momentum(schedule, progress.optimizer_steps, run);
    for (std::size_t group = 0; momentum && group < optimizer.groups(); ++group) {
      OptimizerOptions moved = optimizer.options(group);
      const bool has_betas = moved.name == OptimizerName::adamw || moved.name == OptimizerName::adam;
      (has_betas ? moved.betas.at(0) : moved.momentum) = *momentum;
      optimizer.set_options(moved, group);
    }
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : optimizer.parameters()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
    return gradients;
  }

  void drop_window() {
    optimizer.zero_gradients();
    gradients_held.store(0, std::memory_order_relaxed);
    progress.window = 0;
    window_weight = first_weight = 0;
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

  void update(const std::function<void(StepPart)>& told) {
    Span span{step::kOptimizer};
    if (window_weight == 0) return leave_out_window();  // None of its micro-batches counts.
    // Every micro-batch added its gradient by its weight; the window's is their mean.
    if (window_weight != 1) {
      c10::AutoGradMode no_graph(false);
      at::_foreach_mul_(gradients(), 1.0 / window_weight);
    }
    if (told) std::function<void(StepPart)>{told}(StepPart::optimizer);  // Of a copy: it may put another in its place.
    bool updated = make_gradients_ready();
    if (options.loss_scale > 0) move_loss_scale(updated);
    if (updated) {
      step_optimizer();
      state_held.store(optimizer.state_bytes(), std::memory_order_relaxed);  // Momentum may have been switched on.
      updated = weights_are_good();
    }
    if (!updated) return leave_out_window();
    if (average) average->update(progress.optimizer_steps + 1);
    drop_window();
    ++progress.optimizer_steps;
    if (clip_report.clipped > 0) ++progress.clipped_updates;
    if (!fault_in_window) progress.guard.in_a_row = 0;
    if (is_to_be_kept(progress.optimizer_steps)) keep_state();
  }

  void step_optimizer() {
    const auto rate = [this](double lr) { return scheduled(lr); };
    if (external->step) return external->step(rate);
    schedule_momentum();
    optimizer.step(rate);
  }

  void move_loss_scale(bool finite) {
    const GradScalerState now = loss_scale(), next = now.after(/*found_inf=*/!finite);
    if (!finite && next.scale <= kLossScaleMin) {
      fail(ErrorCode::numerics, "train: the gradients are not finite, down to a loss scale of {}", now.scale);
    }
    progress.loss_scale = next.scale;
    progress.scale_good_updates = next.growth_tracker;
  }

  // Without the loss scale and clipped. False: they are not finite, which a loss scale or the guard forgives.
  bool make_gradients_ready() {
    const bool clips = clip.max_norm > 0 || clip.value > 0 || clip.ratio > 0;
    if (!clips && options.loss_scale == 0) {
      if (!options.step_guard.gradients || gradients_are_noted()) return true;
      const std::optional<StepFault> fault = guard.check_gradients();
      return !fault || bear_with(here(*fault));
    }
    const ClipReport report = unscale_and_clip();
    if (report.finite || options.loss_scale > 0) return report.finite;
    const StepFault unnamed{.kind = FaultKind::gradient, .value = report.norm_before};
    return bear_with(here(guard.check_gradients().value_or(unnamed))) && unscale_and_clip().finite;
  }

  // Off the CPU, where a fault is an error and not a decision, they wait to be read with the losses.
  bool gradients_are_noted() {
    const std::vector<at::Tensor> all = gradients();
    if (options.step_guard.policy != GuardPolicy::raise || all.empty() || all.front().is_cpu()) return false;
    c10::AutoGradMode no_graph(false);
    const at::Tensor largest = at::stack(at::_foreach_norm(all, std::numeric_limits<double>::infinity())).max();
    unread.push_back({largest, progress.epoch, progress.batch, 0, FaultKind::gradient});
    return true;
  }

  ClipReport unscale_and_clip() {
    std::vector<at::Tensor> parameters;
    std::vector<std::string> names;
    std::vector<std::size_t> groups;
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      const auto& [name, parameter] = optimizer.parameters()[i];
      parameters.push_back(parameter);
      if (options.grad_norm_per == GradNormPer::model) continue;
      names.push_back(name);
      groups.push_back(optimizer.group_of(i));
    }
    const std::vector<std::size_t> parts = clip_parts(options.grad_norm_per, names, groups);
    clip_report = clip_gradients(parameters, parts, clip, 1.0 / loss_scale().scale);
    return clip_report;
  }

  bool is_to_be_kept(std::int64_t optimizer_steps) const {
    return rolls_back() && optimizer_steps % options.step_guard.keep_every == 0;
  }

  // After an update. False: the guard has taken it back.
  bool weights_are_good() {
    if (!options.step_guard.weights && !is_to_be_kept(progress.optimizer_steps + 1)) return true;
    const std::optional<StepFault> fault = guard.check_weights();
    return !fault || bear_with(here(*fault));
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
    : impl_(new Impl{std::move(model), std::move(optimizer), std::move(forward), options, std::move(schedule),
                     RunLength{optimizer_steps_total, options.epochs}}) {
  impl_->external = &external_optimizer;
  if (!impl_->model.set_training) fail(ErrorCode::invalid_argument, "train: a Trainer needs a model with set_training");
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
  impl_->model.set_training(true);
  impl_->count_averages();
  impl_->count_kept_state();
  impl_->count_activations();
}

Trainer::~Trainer() = default;

at::Tensor Trainer::step(const TensorBatch& batch, bool last_of_window) {
  return step(impl_->bound(batch), batch.counted(), last_of_window);
}

at::Tensor Trainer::step(const BoundForward& forward, std::int64_t samples, bool last_of_window) {
  Impl& my = *impl_;
  my.before_forward();
  const ExaminedStep examined(my.guard);
  at::Tensor loss;
  double weight = 0;
  {
    Span span{step::kForward};
    if (on_part) on_part(StepPart::forward);
    const Output output = my.run_forward(forward);
    loss = output.loss;
    weight = Impl::weight_of(output, samples);
  }
  if (my.progress.window == 0) my.fault_in_window = false;
  const bool is_left_out = weight > 0 && !my.note_loss(loss, samples);
  if (is_left_out && my.options.step_guard.policy == GuardPolicy::replace) weight = 0;
  if (my.progress.window == 0) my.drop_window();  // Gradients that whoever was before left.
  my.or_drop_window([&] {
    if (is_left_out && weight > 0) return my.leave_out_window();
    if (weight > 0) {
      {
        Span span{step::kBackward};
        if (on_part) on_part(StepPart::backward);
        my.run_backward(loss, my.loss_scale().scale * my.join_window(weight));
      }
      if (!my.activations_are_good()) return;
    }
    ++my.progress.window;
    if (my.progress.window >= my.options.gradient_accumulation_steps || last_of_window) my.update(on_part);
  });
  ++my.progress.batch;
  return loss.detach();
}

at::Tensor Trainer::step(const Batch& batch, bool last_of_window) {
  return step(transfer(batch), last_of_window);
}

void Trainer::finish_window() {
  if (impl_->progress.window > 0) impl_->or_drop_window([this] { impl_->update(on_part); });
}

TensorBatch Trainer::transfer(const Batch& batch) const {
  Span span{step::kTransfer};
  if (on_part) on_part(StepPart::transfer);
  TensorBatch result;
  bool has_image = false;  // The first is the one that is trained on; others are as stored.
  const std::size_t fields = batch.fields().size() - 1;  // "valid" is the last.
  for (std::size_t i = 0; i < fields; ++i) {
    const BatchField& field = batch.field(i);
    at::Tensor values = field_tensor(batch, i);
    const bool is_image = field.encoding == Encoding::image && !has_image;
    has_image = has_image || is_image;
    if (is_image && values.dim() == 4) values = in_layout(values, torch_format(impl_->memory_format));
    auto [offsets, shapes, present] = field_shape(batch, i);
    result.add({field.name, std::move(values), std::move(offsets), std::move(shapes), std::move(present)});
  }
  const auto valid = batch.valid();
  if (std::find(valid.begin(), valid.end(), 0) != valid.end()) result.valid = field_tensor(batch, fields);
  return result;
}

Output Trainer::forward_backward(const TensorBatch& batch) {
  impl_->drop_window();
  Output output = impl_->run_forward(impl_->bound(batch));
  impl_->run_backward(output.loss, 1.0);
  return output;
}

std::optional<double> Trainer::mean_loss() {
  impl_->read_losses();
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
  return evaluate(forward ? [&] { return forward(batch); } : impl_->bound(batch));
}

Output Trainer::evaluate(const BoundForward& forward) {
  c10::AutoGradMode no_graph(false);
  EvaluationMode evaluation(impl_->model);
  return impl_->run_forward(forward);
}

const std::vector<std::pair<std::string, at::Tensor>>& Trainer::averages() const {
  static const std::vector<std::pair<std::string, at::Tensor>> none;
  return impl_->average ? impl_->average->tensors() : none;
}

void Trainer::with_averages(const std::function<void()>& work) {
  const ShownAverages shown{*this};
  work();
}

void Trainer::set_run_length(std::int64_t optimizer_steps_total, std::int64_t epochs) {
  impl_->run = {optimizer_steps_total, epochs};
}

void Trainer::set_precision(Precision precision) {
  impl_->options.precision = precision;
}

void Trainer::set_memory_format(MemoryFormat format) {
  c10::AutoGradMode no_graph(false);
  const at::MemoryFormat wanted = torch_format(format);
  const auto convert = [wanted](const at::Tensor& tensor) {
    if (tensor.dim() == 4) tensor.set_data(in_layout(tensor.detach(), wanted));
  };
  for (const auto& [name, parameter] : impl_->model.parameters) {
    convert(parameter);
    if (parameter.grad().defined()) convert(parameter.grad());
  }
  for (const auto& [name, tensor] : impl_->optimizer.state()) convert(tensor);
  if (impl_->average) impl_->average->lay_like_weights();
  impl_->memory_format = format;
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
  impl_->kept_held.store(impl_->last_good.bytes(), std::memory_order_relaxed);
}
const ClipReport& Trainer::clip_report() const {
  return impl_->clip_report;
}
double Trainer::loss_scale() const {
  return impl_->loss_scale().scale;
}
double Trainer::learning_rate() const {
  return impl_->scheduled(impl_->optimizer.options().lr);
}

Evaluation evaluate(Trainer& trainer, Loader& loader, const Forward& forward, const std::function<bool()>& stop) {
  Evaluation result;
  double loss_sum = 0;
  std::int64_t right = 0;
  std::optional<std::int64_t> right_top5;
  Epoch epoch = loader.epoch(0);
  while (const std::optional<Batch> host = epoch.next()) {
    if (stop && stop())
      fail(ErrorCode::cancelled, "train: the evaluation was stopped after {} samples", result.samples);
    const TensorBatch batch = trainer.transfer(*host);
    const Output output = trainer.evaluate(batch, forward);
    const auto logits = output.named.find("logits");
    if (logits == output.named.end()) {
      fail(ErrorCode::invalid_argument, "train: evaluation needs a named output \"logits\" of the forward");
    }
    const std::int64_t samples = batch.counted();
    const at::Tensor& labels = batch["labels"];
    loss_sum += output.loss.item<double>() * static_cast<double>(samples);
    right += count_right(batch, logits->second.argmax(1).eq(labels));
    if (logits->second.size(1) > kTop5) {
      const at::Tensor top5 = std::get<1>(logits->second.topk(kTop5, 1));
      right_top5 = right_top5.value_or(0) + count_right(batch, top5.eq(labels.unsqueeze(1)).any(/*dim=*/1));
    }
    result.samples += samples;
  }
  if (result.samples > 0) {
    result.loss = loss_sum / static_cast<double>(result.samples);
    result.accuracy = static_cast<double>(right) / static_cast<double>(result.samples);
    if (right_top5) result.top5_accuracy = static_cast<double>(*right_top5) / static_cast<double>(result.samples);
  }
  return result;
}

}  // namespace headrace
