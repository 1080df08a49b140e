#include <ATen/Context.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <headrace/trace.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/memory/accounts.h"
#include "torch/numerics/autocast.h"
#include "torch/numerics/clip.h"
#include "torch/numerics/loss_scale.h"
#include "torch/tensor/batch_tensor.h"
#include "torch/tensor/tensor_allocations.h"
#include "torch/train/lr_scheduler.h"
#include "torch/train/shown_averages.h"
#include "torch/train/weight_average.h"

namespace headrace {
namespace {

constexpr std::size_t kLossesUnread = 50;  // Off the CPU: losses that wait to be read together.
constexpr std::int64_t kTop5 = 5;

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
  struct Loss {
    at::Tensor value;  // Scalar, detached.
    std::int64_t epoch, batch, samples;
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
  std::vector<Loss> unread;
  std::optional<WeightAverage> average = average_of(model, options);

  // Bytes, for whoever asks while this thread works.
  std::atomic<std::int64_t> gradients_held{0}, state_held{optimizer.state_bytes()};
  const std::int64_t model_bytes = bytes_of(model), average_bytes = average ? bytes_of(average->tensors()) : 0;
  const Account model_account{"parameters", [this] { return model_bytes; }};
  const Account gradient_account{"gradients", [this] { return gradients_held.load(std::memory_order_relaxed); }};
  const Account state_account{"optimizer", [this] { return state_held.load(std::memory_order_relaxed); }};

  std::optional<Account> average_account, activation_account;

  void count_averages() {
    if (average) average_account.emplace("averages", [this] { return average_bytes; });
  }

  // Where tensors are counted: those that are none of the above. A step's results and buffers, for the most part.
  void count_activations() {
    if (!TensorAllocations::bytes()) return;
    activation_account.emplace("activations", [this] {
      const std::int64_t known = model_bytes + average_bytes + gradients_held.load(std::memory_order_relaxed) +
                                 state_held.load(std::memory_order_relaxed);
      return std::max<std::int64_t>(TensorAllocations::bytes().value_or(0) - known, 0);
    });
  }

  Output run_forward(const BoundForward& bound) const {
    AutocastBf16 autocast(options.precision == Precision::bf16);
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

  void note_loss(const at::Tensor& loss, std::int64_t samples) {
    unread.push_back({loss, progress.epoch, progress.batch, samples});
    if (loss.is_cpu() || unread.size() >= kLossesUnread) read_losses();
  }

  void read_losses() {
    for (const Loss& loss : unread) {
      const double value = loss.value.scalar_type() == at::kFloat && loss.value.is_cpu()
                               ? static_cast<double>(*loss.value.const_data_ptr<float>())
                               : loss.value.item<double>();
      if (!std::isfinite(value)) {
        const Loss bad = loss;
        unread.clear();
        fail(ErrorCode::numerics, "train: loss is {} in epoch {}, batch {}", value, bad.epoch, bad.batch);
      }
      progress.loss_sum += value * static_cast<double>(loss.samples);
      progress.loss_samples += loss.samples;
    }
    unread.clear();
  }

  LossScale loss_scale() const {
    if (options.loss_scale == 0) return {};
    return {progress.loss_scale > 0 ? progress.loss_scale : options.loss_scale, progress.scale_good_updates};
  }

  double scheduled(double lr) const { return scheduled_lr(schedule, lr, progress.optimizer_steps, run); }

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
    // Every micro-batch added its whole gradient; the window's is their mean.
    if (progress.window > 1) {
      c10::AutoGradMode no_graph(false);
      at::_foreach_mul_(gradients(), 1.0 / static_cast<double>(progress.window));
    }
    if (told) std::function<void(StepPart)>{told}(StepPart::optimizer);  // Of a copy: it may put another in its place.
    const bool ready = make_gradients_ready();
    if (options.loss_scale > 0) {
      const LossScale next = loss_scale().after(ready);
      progress.loss_scale = next.scale;
      progress.scale_good_updates = next.good_updates;
    }
    if (ready) {
      optimizer.step([this](double lr) { return scheduled(lr); });
      state_held.store(optimizer.state_bytes(), std::memory_order_relaxed);  // Momentum may have been switched on.
      if (average) average->update(progress.optimizer_steps + 1);
    }
    drop_window();
    ++(ready ? progress.optimizer_steps : progress.skipped_updates);
  }

  // Without the loss scale and clipped. False: they are not finite, which a loss scale forgives.
  bool make_gradients_ready() {
    const double scale = loss_scale().scale;
    if (options.max_grad_norm == 0) return options.loss_scale == 0 || unscale_gradients(gradients(), scale);
    const double norm = clip_gradients(gradients(), options.max_grad_norm, 1.0 / scale);
    if (std::isfinite(norm)) return true;
    if (options.loss_scale > 0) return false;
    fail(ErrorCode::numerics, "train: norm of the gradients is {} in epoch {}, batch {}", norm, progress.epoch,
         progress.batch);
  }
};

Trainer::Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options,
                 LrSchedulerOptions schedule, std::int64_t optimizer_steps_total)
    : impl_(new Impl{std::move(model), std::move(optimizer), std::move(forward), options, std::move(schedule),
                     RunLength{optimizer_steps_total, options.epochs}}) {
  if (!impl_->model.set_training) fail(ErrorCode::invalid_argument, "train: a Trainer needs a model with set_training");
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
  impl_->model.set_training(true);
  impl_->count_averages();
  impl_->count_activations();
}

Trainer::~Trainer() = default;

at::Tensor Trainer::step(const TensorBatch& batch, bool last_of_window) {
  return step(impl_->bound(batch), batch.counted(), last_of_window);
}

at::Tensor Trainer::step(const BoundForward& forward, std::int64_t samples, bool last_of_window) {
  Impl& my = *impl_;
  at::Tensor loss;
  {
    Span span{step::kForward};
    if (on_part) on_part(StepPart::forward);
    loss = my.run_forward(forward).loss;
  }
  my.note_loss(loss, samples);
  if (my.progress.window == 0) my.optimizer.zero_gradients();  // Whoever left some.
  my.or_drop_window([&] {
    {
      Span span{step::kBackward};
      if (on_part) on_part(StepPart::backward);
      my.run_backward(loss, my.loss_scale().scale);
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
