#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <headrace/clip_gradients.h>
#include <headrace/step_guard.h>
#include <headrace/trace.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/train/detail/trainer_impl.h"
#include "torch/train/finite.h"

namespace headrace {
namespace {

constexpr double kLossScaleMin = 1.0 / (1 << 24);  // Gradients that are not finite at this scale are so at any.
constexpr double kLossScaleMax = 0x1p126;          // Its inverse is a normal float32.

}  // namespace

double Trainer::Impl::gradient_factor() const {
  const double weight = progress.window_weight > 0 ? progress.window_weight : 1.0;
  return 1.0 / (loss_scale().scale * weight);
}

bool Trainer::Impl::note_loss(const at::Tensor& loss, std::int64_t samples) {
  const bool is_judged_there = options.step_guard.policy == GuardPolicy::raise || skips_by_operators();
  if (!loss.is_cpu() && is_judged_there) {
    unread_loss = loss.detach().clone();
    add_figure(unread_loss, progress.batch, samples, StepFigure::Kind::loss);
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

void Trainer::Impl::add_figure(at::Tensor values, std::int64_t batch, std::int64_t samples, StepFigure::Kind kind,
                               std::int64_t row) {
  figures.add({std::move(values), progress.epoch, batch, samples, kind, row});
  if (figures.is_full()) figures.exchange([this](const StepFigureRead& read) { take(read); });
}

void Trainer::Impl::read_figures() {
  figures.read_all([this](const StepFigureRead& read) { take(read); });
}

void Trainer::Impl::take(const StepFigureRead& read) {
  const auto refuse = [&](FaultKind kind, double value, const std::string& tensor) {
    StepFault fault{.kind = kind, .value = value, .tensor = tensor};
    fault.epoch = read.of.epoch;
    fault.batch = read.of.batch;
    if (options.step_guard.policy == GuardPolicy::skip) return note_left_out(std::move(fault));
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
      if (!std::isfinite(read.values[0])) return refuse(FaultKind::loss, read.values[0], "");
      add_loss(read.values[0], read.of.samples);
      if (of_update == nullptr) return;
      break;
  }
  const double norm = of_update[0], clipped = of_update[1], found_inf = of_update[2], place = of_update[3];
  const bool is_bad = found_inf != 0 && checks_gradients();
  if (is_bad) refuse(FaultKind::gradient, norm, window_update.gradient_at(place));
  const bool is_made = left_out_at != std::pair{read.of.epoch, read.of.batch};
  if (is_made) {
    progress.guard.in_a_row = 0;
    left_out_at = {-1, -1};  // A run that goes back may meet that batch again.
  }
  if (is_made && clipped > 0) ++progress.clipped_updates;
  if (!window_update.clips()) return;
  notes.clip_report = {
      .norm_before = norm, .norm_after = norm, .clipped = static_cast<std::int64_t>(clipped), .finite = found_inf == 0};
  if (options.max_grad_norm > 0 && options.grad_norm_per == GradNormPer::model) {
    notes.clip_report.norm_after = std::min(norm, options.max_grad_norm);
  }
}

void Trainer::Impl::note_left_out(StepFault fault) {
  const std::pair batch{fault.epoch, fault.batch};
  if (std::exchange(left_out_at, batch) == batch) return;
  --progress.optimizer_steps;  // First, as the decision may be an error.
  ++progress.skipped_updates;
  const std::optional<StepFault> weight = fault.kind == FaultKind::loss ? guard.check_weights() : std::nullopt;
  if (weight) {
    fault.tensor = weight->tensor;
    fault.module = weight->module;
  }
  guard.decide(fault, progress.guard);
  ++progress.guard.skipped;
}

StepFault Trainer::Impl::here(StepFault fault) const {
  fault.epoch = progress.epoch;
  fault.batch = batch_at_hand;
  return fault;
}

bool Trainer::Impl::bear_with(const StepFault& fault) {
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

void Trainer::Impl::keep_state() {
  last_good.keep(rolled_back());
  accounts.kept.store(last_good.bytes(), std::memory_order_relaxed);
}

void Trainer::Impl::have_last_good() {
  if (rolls_back() && !last_good.is_of(*external)) keep_state();
}

GradScalerState Trainer::Impl::loss_scale() const {
  if (options.loss_scale == 0) return {.scale = 1.0};
  return {.scale = progress.loss_scale > 0 ? progress.loss_scale : options.loss_scale,
          .growth_tracker = progress.scale_good_updates};
}

double Trainer::Impl::scheduled(double lr) const {
  return swa_lr(options, schedule, lr, progress.optimizer_steps, run, progress.plateau) * progress.guard.lr_factor;
}

std::vector<double> Trainer::Impl::scheduled_rates() const {
  std::vector<double> of_groups;
  for (std::size_t i = 0; i < optimizer.groups(); ++i) {
    of_groups.push_back(scheduled(optimizer.options(i).lr) * optimizer.lr_mult(i));
  }
  return of_groups;
}

void Trainer::Impl::schedule_momentum() {
  if (external->step) return;
  const std::optional<double> momentum = scheduled_momentum(schedule, progress.optimizer_steps, run);
  for (std::size_t group = 0; momentum && group < optimizer.groups(); ++group) {
    optimizer.set_momentum(*momentum, group);
  }
}

void Trainer::Impl::note_state() {
  const std::size_t count = optimizer.state_count();
  if (std::exchange(state_count, count) == count) return;
  accounts.state.store(optimizer.is_on_cpu() ? optimizer.state_bytes() : 0, std::memory_order_relaxed);
}

void Trainer::Impl::update(const std::function<void(StepPart)>& told) {
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

void Trainer::Impl::step_optimizer() {
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

void Trainer::Impl::move_loss_scale(bool finite) {
  const GradScalerState now = loss_scale(), next = now.after(/*found_inf=*/!finite);
  if (!finite && next.scale <= kLossScaleMin) {
    fail(ErrorCode::numerics, "train: the gradients are not finite, down to a loss scale of {}", now.scale);
  }
  progress.loss_scale = std::min(next.scale, kLossScaleMax);
  progress.scale_good_updates = next.growth_tracker;
}

bool Trainer::Impl::make_gradients_ready() {
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

bool Trainer::Impl::gradients_are_noted() {
  if (external->step || options.step_guard.weights) return false;
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

bool Trainer::Impl::weights_are_good() {
  if (!weights_are_checked()) return true;
  const std::optional<StepFault> fault = guard.check_weights();
  return !fault || bear_with(here(*fault));
}

bool Trainer::Impl::optimizer_is_good() {
  const NamedTensors state = optimizer.state();
  return std::all_of(state.begin(), state.end(), [](const auto& named) { return is_finite(named.second); });
}

}  // namespace headrace
