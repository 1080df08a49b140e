#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <headrace/autocast.h>
#include <headrace/trace.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/train/detail/trainer_impl.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

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

}  // namespace

Output Trainer::Impl::run_forward(const BoundForward& bound) const {
  if (!model.parameters.empty() && model.parameters.front().second.device() != device) {
    fail(ErrorCode::invalid_argument, "train: the model was moved from {} to {}: wanted a new Trainer", device.str(),
         model.parameters.front().second.device().str());
  }
  at::autocast::clear_cache();       // Of a caller's scope around several steps: of weights as they were.
  std::optional<Autocast> autocast;  // Without: whatever the caller has.
  if (options.precision != Precision::fp32) {
    autocast.emplace(device.type(), options.precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
  }
  Output output = bound();
  if (!output.loss.defined() || output.loss.numel() != 1) {
    fail(ErrorCode::invalid_argument, "train: wanted a loss of one number from forward, found {}",
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

Output Trainer::forward_without_graph(const TensorBatch& batch) {
  c10::AutoGradMode no_graph(false);
  return impl_->run_forward(impl_->bound(batch));
}

void Trainer::Impl::run_backward(const at::Tensor& loss, double scale) {
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

void Trainer::Impl::note_gradients() {
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

double Trainer::Impl::share_of(double weight) const {
  return weight / std::max(weight, progress.largest_weight);
}

void Trainer::Impl::join_window(double weight) {
  const double share = share_of(weight);
  if (weight > progress.largest_weight) {
    const double shrink = progress.largest_weight / weight;
    if (progress.window_weight > 0) window_update.multiply_now(shrink);
    progress.window_weight *= shrink;
    progress.largest_weight = weight;
  }
  progress.window_weight += share;
}

const Applied& Trainer::Impl::set_memory_limit(std::int64_t bytes) {
  const Applied& applied = memory_limit.set(bytes, model);
  if (bytes > 0 && applied.reason.empty()) {
    count_training(model, averages(), optimizer);
    count_tensors(last_good.copies());
  }
  return applied;
}

void Trainer::Impl::before_forward() {
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

void Trainer::Impl::drop_gradients() {
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.grad().defined()) parameter.mutable_grad().reset();
  }
  optimizer.zero_gradients();
  accounts.gradients.store(0, std::memory_order_relaxed);
}

void Trainer::Impl::drop_window() {
  drop_gradients();
  progress.window = 0;
  progress.window_weight = progress.largest_weight = 0;
}

void Trainer::Impl::leave_out_window() {
  drop_window();
  ++progress.skipped_updates;
}

at::Tensor Trainer::Impl::step(const StepBatch& batch, const std::function<void(StepPart)>& told, bool last_of_window) {
  if (options.cuda_graph && !batch.is_moved) {
    graph.reason = why_no_graph();
    if (graph.reason.empty()) graph.reason = "the step was given a forward without a batch that can be moved";
  }
  batch_at_hand = progress.batch;
  if (!batch.is_moved) timer.begin();
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
      if (progress.window >= options.gradient_accumulation_steps || last_of_window) {
        update(told);
        timer.end(DevicePhase::optimizer);
      }
    }
  } catch (...) {
    if (under_way.has_begun) drop_window();  // Half-made gradients would spoil the next one.
    if (progress.out_of_memory == ran_out_before) progress.micro_batch = micro_batch_before;
    throw;
  }
  ++progress.batch;
  return under_way.mean_loss();
}

void Trainer::Impl::grow_micro_batch(std::int64_t samples) {
  if (halves() && progress.micro_batch_grows && progress.micro_batch < samples) progress.micro_batch *= 2;
}

bool Trainer::Impl::compute_if_it_fits(const StepBatch& batch, std::int64_t begin, std::int64_t end,
                                       StepUnderWay& under_way) {
  before_forward();
  if (!halves()) {
    under_way.add(compute(batch.part(begin, end), begin == 0, under_way));
    return true;
  }
  if (!figures.has_room_for_one()) read_figures();  // Then none is read before the backward is done.
  const Progress before = progress;
  const std::size_t waiting_before = figures.waiting();
  const bool had_begun = under_way.has_begun;
  const NamedTensors drawn_from = generator_states(device, *generators);
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
  set_generator_states({drawn_from.begin(), drawn_from.end()}, device, *generators);
  note_out_of_memory(batch, end - begin, reason);
  return false;
}

void Trainer::Impl::note_out_of_memory(const StepBatch& batch, std::int64_t samples, const std::string& reason) {
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

PartLoss Trainer::Impl::compute(const BatchPart& part, bool is_first, StepUnderWay& under_way) {
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
  timer.end(DevicePhase::forward);
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

void Trainer::Impl::add_gradients_of(const at::Tensor& loss, double weight, StepUnderWay& under_way) {
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
  timer.end(DevicePhase::backward);
  note_gradients();
}

std::vector<at::Tensor> Trainer::Impl::parameters_with_gradients() const {
  std::vector<at::Tensor> parameters;
  for (const NamedTensors* some : {&model.parameters, &optimizer.parameters()}) {
    for (const auto& [name, parameter] : *some) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
  }
  return parameters;
}

bool Trainer::Impl::activations_are_good() {
  const std::optional<StepFault> fault = guard.check_activations();
  if (!fault || bear_with(here(*fault))) return true;
  leave_out_window();
  return false;
}

}  // namespace headrace
