#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <headrace/trace.h>
#include <headrace/trainer.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/options/schedules.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/train/detail/trainer_impl.h"
#include "torch/train/memory_layout.h"
#include "torch/train/shown_averages.h"

namespace headrace {
namespace {

LrSchedulerOptions checked(LrSchedulerOptions schedule) {
  check_lr_scheduler(schedule);
  return schedule;
}

RunLength run_length(std::int64_t steps, std::int64_t epochs) {
  if (epochs < 1) fail(ErrorCode::invalid_argument, "train: epochs: wanted at least 1, found {}", epochs);
  return {steps, epochs};
}

void check_precision(Precision precision, double loss_scale) {
  if (precision != Precision::fp16 || loss_scale > 0) return;
  fail(ErrorCode::invalid_argument,
       "train: loss_scale: wanted one above 0 with precision fp16, where small gradients become 0 without it, found {}",
       loss_scale);
}

// Of one loss they would be read in the middle of a step.
void check_loss_interval(std::int64_t steps) {
  if (steps < 2) fail(ErrorCode::invalid_argument, "train: loss_interval: wanted at least 2, found {}", steps);
}

// Of TrainOptions::memory_limit_mib.
std::int64_t limit_bytes(std::int64_t mib) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  if (mib >= 0 && mib <= kMost) return mib << 20;
  fail(ErrorCode::invalid_argument, "train: memory_limit_mib: wanted 0 to {}, found {}", kMost, mib);
}

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
  for (const TensorBatch::Field& field : batch.fields()) {
    made.structure += fmt::format("{} {:d}{:d}{:d} ", field.name, field.offsets.defined(), field.shapes.defined(),
                                  field.present.defined());
  }
  if (batch.valid.defined()) made.structure += "valid";
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

std::vector<at::Tensor> without_names(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

Accelerator* timed_accelerator(at::Device device, Accelerator* accelerator) {
  return accelerator != nullptr && device.is_cpu() && !accelerator->captures() ? nullptr : accelerator;
}

std::string Trainer::Impl::why_no_device() const {
  return device.is_cpu() ? "the model is on the CPU" : why_no_accelerator;
}

BoundForward Trainer::Impl::bound(const TensorBatch& batch) const {
  if (!forward) fail(ErrorCode::invalid_argument, "train: this Trainer was made without a forward");
  return [this, &batch] { return device.is_cpu() ? forward(batch) : forward(moved(batch)); };
}

TensorBatch Trainer::Impl::moved(const TensorBatch& batch) const {
  return with_tensors(batch, [this](const at::Tensor& tensor) { return tensor.to(device); });
}

Trainer::Trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options,
                 LrSchedulerOptions schedule, std::int64_t optimizer_steps_total)
    : impl_(new Impl{std::move(model), std::move(optimizer), std::move(forward), options, checked(std::move(schedule)),
                     run_length(optimizer_steps_total, options.epochs)}) {
  impl_->external = &external_optimizer;
  impl_->generators = &other_generators;
  if (!impl_->model.set_training) fail(ErrorCode::invalid_argument, "train: a Trainer needs a model with set_training");
  check_precision(options.precision, options.loss_scale);
  check_loss_interval(options.loss_interval);
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
  impl_->model.set_training(true);
  schedule_momentum();  // Or its state would not be there for a checkpoint to be loaded.
  if (const std::int64_t limit = limit_bytes(options.memory_limit_mib); limit > 0) impl_->set_memory_limit(limit);
}

Trainer::~Trainer() = default;

double Output::weight_or(std::int64_t count) const {
  const double found = weight.value_or(static_cast<double>(count));
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
  impl_->timer.begin();
  impl_->or_drop_window([this] { impl_->update(on_part); });
  impl_->timer.end(DevicePhase::optimizer);
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

void Trainer::drop_losses() {
  impl_->figures.clear();
  impl_->progress.loss_sum = 0;
  impl_->progress.loss_samples = 0;
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

void Trainer::set_swa_lr(const TrainOptions& options) {
  impl_->options.swa_start = options.swa_start;
  impl_->options.swa_lr = options.swa_lr;
  impl_->options.swa_anneal_epochs = options.swa_anneal_epochs;
  impl_->options.swa_anneal_strategy = options.swa_anneal_strategy;
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
    if (has_layout(tensor)) tensor.set_data(in_layout(tensor.detach(), format));
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
  for (const std::unique_ptr<StepForm>& form : impl_->forms) form->forget_capture();  // State has other memory now.
  impl_->note_pools();
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

DeviceMemoryReport Trainer::device_memory() const {
  DeviceMemoryReport report;
  if (impl_->accelerator != nullptr) report.memory = impl_->accelerator->memory();
  if (!report.memory) report.reason = impl_->why_no_device();
  return report;
}

void Trainer::reset_peak_device_memory() {
  if (impl_->accelerator != nullptr) impl_->accelerator->reset_peak_memory();
}

std::optional<std::int64_t> Trainer::release_device_cache() {
  const DeviceMemoryReport before = device_memory();
  if (!before.memory) return std::nullopt;
  impl_->accelerator->release_cache();
  return before.memory->all.reserved.now - device_memory().memory->all.reserved.now;
}

void Trainer::save_device_memory(const std::filesystem::path& path) const {
  if (impl_->device.is_cpu() || impl_->accelerator == nullptr) {
    fail(ErrorCode::unsupported, "train: save_device_memory: wanted a model on a CUDA device: {}",
         impl_->why_no_device());
  }
  write_file(path, impl_->accelerator->memory_snapshot());
}

Applied Trainer::time_device(bool on) {
  impl_->timer.set_wanted(on);
  const bool applied = on && impl_->timer.can_time();
  return {.key = "time_device",
          .requested = on ? "true" : "false",
          .applied = applied ? "true" : "false",
          .reason = on == applied ? "" : impl_->why_no_device()};
}

DeviceTimes Trainer::device_times() {
  return impl_->timer.read();
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
std::vector<double> Trainer::learning_rates() const {
  return impl_->scheduled_rates();
}

}  // namespace headrace
