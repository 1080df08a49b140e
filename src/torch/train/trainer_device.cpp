#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <headrace/trace.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/tensor/translate.h"
#include "torch/train/detail/trainer_impl.h"
#include "torch/train/detail/update.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

constexpr std::int64_t kStepsBeforeCapture = 3;  // In which libraries choose kernels and set up what they keep.
constexpr std::int64_t kCapturesInVain = 2;      // That were forgotten after no more steps than these.
constexpr std::size_t kForms = 8;                // Of batches; those of further forms are moved by waiting.

}  // namespace

bool Trainer::Impl::updates_by_operators() const {
  if (device.is_cpu() && !(options.cuda_graph && accelerator != nullptr && accelerator->captures())) return false;
  if (external->step || options.loss_scale > 0 || options.clip_grad_ratio > 0) return false;
  const StepGuardOptions& guards = options.step_guard;
  const bool skips = guards.policy == GuardPolicy::skip;
  if ((guards.policy != GuardPolicy::raise && !skips) || guards.weights) return false;
  // A window or batch of several parts is left out from its bad part on, which only the host can do.
  const bool has_parts = options.gradient_accumulation_steps > 1 || halves() || progress.micro_batch > 0;
  if (skips && (guards.detect_anomaly || has_parts)) return false;
  for (std::size_t i = 0; device.is_cpu() && i < optimizer.groups(); ++i) {
    if (!Optimizer::why_not_on_device(optimizer.options(i)).empty()) return false;
  }
  return true;
}

void Trainer::Impl::set_device_inputs() {
  const auto on_device = at::TensorOptions(at::kFloat).device(device);
  std::vector<double> now = scheduled_rates();
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

at::Tensor Trainer::Impl::step_by_operators(double factor, const at::Tensor& loss) {
  at::Tensor is_left_out;
  if (options.step_guard.policy == GuardPolicy::skip && loss.defined()) {
    c10::AutoGradMode no_graph(false);
    const at::Tensor is_bad = loss.isfinite().logical_not();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].copy_(at::where(is_bad, buffers_before[i], buffers[i]));
    }
    is_left_out = is_bad.to(at::kFloat);
  }
  return window_update.step_by_operators(factor, checks_gradients(), rates, average_weight, is_left_out);
}

void Trainer::Impl::update_by_operators() {
  schedule_momentum();
  set_device_inputs();
  at::Tensor found = step_by_operators(gradient_factor(), std::exchange(unread_loss, {}));
  note_state();
  at::autocast::clear_cache();
  drop_window();
  ++progress.optimizer_steps;
  add_figure(std::move(found), batch_at_hand, 0, StepFigure::Kind::update);  // Last: it may tell of an older fault.
}

std::string Trainer::Impl::why_no_graph() const {
  if (!options.cuda_graph) return "cuda_graph is off";
  if (accelerator == nullptr) return why_no_accelerator;
  if (!accelerator->captures()) return "the model is on the CPU";
  if (external->step) return external->name + " makes the update itself";
  if (options.loss_scale > 0) return "the host decides by each update's gradients on its loss_scale";
  if (options.gradient_accumulation_steps > 1) return "gradient_accumulation_steps is above 1";
  if (options.clip_grad_ratio > 0) return "clip_grad_ratio is not captured";
  const GuardPolicy policy = options.step_guard.policy;
  if ((policy != GuardPolicy::raise && policy != GuardPolicy::skip) || options.step_guard.weights ||
      options.step_guard.detect_anomaly) {
    return "step_guard looks at each step before the next one: wanted policy \"raise\" or \"skip\" without weights "
           "and detect_anomaly";
  }
  if (halves() || progress.micro_batch > 0) return "batches may be computed in parts";
  if (scheduled_momentum(schedule, progress.optimizer_steps, run)) return "the schedule moves momentum";
  for (std::size_t i = 0; i < optimizer.groups(); ++i) {
    const std::string kind = Optimizer::why_not_on_device(optimizer.options(i));
    if (!kind.empty()) return kind + " is not captured";
  }
  return {};
}

std::uint64_t Trainer::Impl::settings() const {
  const at::DeviceType type = device.type();
  const bool casts = at::autocast::is_autocast_enabled(type);
  const auto cast_type = casts ? static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(type)) + 1 : 0;
  return ((cast_type * 2 + (at::globalContext().deterministicAlgorithms() ? 1 : 0)) * 4 +
          static_cast<std::uint64_t>(options.precision)) *
             2 +
         (memory_format == MemoryFormat::channels_last ? 1 : 0);
}

StepForm* Trainer::Impl::form_of(const MovableBatch& batch) {
  for (const std::unique_ptr<StepForm>& form : forms) {
    if (form->is_of(batch.tensors, batch.structure)) return form.get();
  }
  if (forms.size() == kForms) return nullptr;
  return forms.emplace_back(std::make_unique<StepForm>(batch.tensors, batch.structure, device, accelerator)).get();
}

at::Tensor Trainer::Impl::step_on(const MovableBatch& batch, std::int64_t samples,
                                  const std::function<void(StepPart)>& told, bool last_of_window) {
  StepForm* const form = form_of(batch);
  graph.reason = why_no_graph();
  if (graph.reason.empty() && form == nullptr) {
    graph.reason = fmt::format("{} batches of other shapes or structure came before this one", kForms);
  }
  if (graph.reason.empty()) graph.reason = form->why_not_captured;
  if (graph.reason.empty() && batch.tensors.empty()) graph.reason = "the batch holds no tensor";
  if (graph.reason.empty() && samples == 0) graph.reason = "no sample of the batch counts";
  if (graph.reason.empty() && progress.window > 0) graph.reason = "a window was open";
  if (graph.reason.empty()) {
    if (form->is_captured() && !form->was_captured_with(model, optimizer, settings())) {
      // A capture costs more than many steps.
      if (form->captures >= kCapturesInVain && form->replays <= kStepsBeforeCapture) {
        form->why_not_captured =
            "what a captured step holds changes every few steps: the optimizer's betas, momentum or weight_decay, or "
            "where parameters lie";
      }
      form->forget_capture();
      form->steps = 0;  // What libraries keep for a kernel may be another's now.
      note_pools();
      graph.reason = form->why_not_captured;
    }
  }
  if (graph.reason.empty()) {
    if (!form->is_captured() && form->steps >= kStepsBeforeCapture) capture(*form, batch);
    if (form->is_captured()) return replay(*form, batch.tensors, samples);
  }
  const bool prepares = graph.reason.empty();
  if (prepares) {
    graph.reason =
        fmt::format("{} steps of batches like this one are made before one is captured", kStepsBeforeCapture);
  }
  std::vector<at::Tensor> there;
  timer.begin();
  {
    Span span{step::kTransfer};
    if (form != nullptr) {
      there = form->moved(batch.tensors);
    } else {
      for (const at::Tensor& tensor : batch.tensors) there.push_back(tensor.to(device));
    }
  }
  timer.end(DevicePhase::transfer);
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

void Trainer::Impl::capture(StepForm& form, const MovableBatch& batch) {
  schedule_momentum();
  set_device_inputs();
  drop_window();  // Gradients that whoever was before left.
  const at::Tensor generator = generator_state();
  const auto work = [this, forward = batch.forward](const std::vector<at::Tensor>& tensors) {
    before_forward();
    const Output output = run_forward([&] { return forward(tensors); });
    if (output.weight || output.samples) {
      fail(ErrorCode::unsupported, "train: forward returns a weight or samples, which the host reads");
    }
    run_backward(output.loss, 1.0);
    const at::Tensor of_update = step_by_operators(1.0, output.loss.detach());
    drop_gradients();
    at::autocast::clear_cache();
    c10::AutoGradMode no_graph(false);
    const at::Tensor loss = output.loss.detach().to(at::kFloat).reshape({1});
    return at::cat({loss, of_update, loss});  // Whoever gets the last one may write to it.
  };
  try {
    // What replaces rates, weight and seed must not free what the captured step reads.
    std::vector<at::Tensor> reads{rates, average_weight, seed};
    reads.insert(reads.end(), buffers_before.begin(), buffers_before.end());
    form.capture(batch.tensors, CaptureState(model, optimizer, settings()), std::move(reads), work);
  } catch (...) {
    set_generator_state(generator);  // The step is made once more.
    drop_window();
    at::autocast::clear_cache();
    seed.reset();
    const Error error = translate(std::current_exception());
    if (std::string_view(error.what()).find("KeyboardInterrupt") != std::string_view::npos) throw;
    graph.reason = form.why_not_captured = error.what();
  }
  note_pools();
}

void Trainer::Impl::note_pools() {
  graph.pool_bytes = 0;
  for (const std::unique_ptr<StepForm>& form : forms) graph.pool_bytes += form->pool_bytes();
}

at::Tensor Trainer::Impl::replay(StepForm& form, const std::vector<at::Tensor>& tensors, std::int64_t samples) {
  batch_at_hand = progress.batch;
  drop_gradients();  // That whoever was before left.
  timer.begin();
  set_device_inputs();
  const auto [block, row] = form.replay(tensors, [this] { timer.end(DevicePhase::transfer); });
  timer.end(DevicePhase::replay);
  at::autocast::clear_cache();
  for (const auto& [name, parameter] : optimizer.parameters()) count_write(parameter);
  for (const at::Tensor& buffer : buffers) count_write(buffer);
  for (const auto& [name, tensor] : averages()) count_write(tensor);
  ++progress.batch;
  ++progress.optimizer_steps;
  ++graph.replays;
  add_figure(block, batch_at_hand, samples, StepFigure::Kind::step, row);  // Last: it may tell of an older fault.
  const std::int64_t width = block.size(1);
  return block.as_strided({}, {}, row * width + width - 1);
}

}  // namespace headrace
