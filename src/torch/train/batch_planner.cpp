#include <headrace/batch_planner.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/middle.h"
#include "core/hardware/machine.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/train/detail/batch_search.h"
#include "torch/train/last_good_state.h"
#include "torch/train/micro_batch.h"

namespace headrace {
namespace {

constexpr double kProbeShare = 1.25;  // Of the limit, for a probe.
constexpr std::size_t kTimedLeast = 2, kTimedMost = 5;
constexpr double kTimedEnough_s = 0.25;

void check(Trainer& trainer, const BatchPlannerOptions& options) {
  const auto at_least_0 = [](const char* key, auto value) {
    if (value >= 0) return;
    fail(ErrorCode::invalid_argument, "train: plan_batch_size: {}: wanted at least 0, found {}", key, value);
  };
  at_least_0("memory_limit", options.memory_limit);
  at_least_0("global_batch_size", options.global_batch_size);
  if (!std::isfinite(options.target_throughput) || options.target_throughput < 0) {
    fail(ErrorCode::invalid_argument, "train: plan_batch_size: target_throughput: wanted at least 0, found {}",
         options.target_throughput);
  }
  if (options.initial_batch_size < 1 || options.initial_batch_size > options.max_batch_size) {
    fail(ErrorCode::invalid_argument,
         "train: plan_batch_size: initial_batch_size: wanted 1 to max_batch_size, which is {}, found {}",
         options.max_batch_size, options.initial_batch_size);
  }
  for (const auto& [name, parameter] : trainer.model().parameters) {
    if (parameter.is_cpu()) continue;
    fail(ErrorCode::unsupported, "train: plan_batch_size: {}: wanted a tensor on the CPU, found one on {}", name,
         parameter.device().str());
  }
  const ExternalOptimizer& external = trainer.external_optimizer;
  if (external.step && !external.keep_state) {
    fail(ErrorCode::unsupported, "train: plan_batch_size: external_optimizer {}: wanted a keep_state, found none",
         external.name);
  }
}

// The limit for all tensors; a search has another one, which ends with it.
class SearchLimit {
 public:
  SearchLimit() : before_(tensor_memory_limit()) { set_tensor_memory_limit(0); }
  ~SearchLimit() { set_tensor_memory_limit(before_); }
  SearchLimit(const SearchLimit&) = delete;
  SearchLimit& operator=(const SearchLimit&) = delete;

  std::int64_t before() const { return before_; }

 private:
  const std::int64_t before_;
};

// All that steps change, put back by put_back(), else at the end of its life, bit for bit. Parameters have no gradients
// meanwhile and no window is open when it has been made or was rewound.
class KeptTraining {
 public:
  explicit KeptTraining(Trainer& trainer)
      : trainer_(trainer), progress_(trainer.progress()), window_notes_(trainer.window_notes()) {
    state_.keep(parts());
    for (const auto& [name, tensor] : trainer_.last_good_state()) {
      last_good_.emplace_back(name, tensor.detach().clone());
    }
    for (std::size_t group = 0; group < trainer_.optimizer().groups(); ++group) {
      options_.push_back(trainer_.optimizer().options(group));
    }
    // From here on the trainer changes.
    for (const NamedTensors* tensors : all_parameters()) {
      for (const auto& [name, parameter] : *tensors) {
        if (!parameter.grad().defined()) continue;
        gradients_.emplace_back(parameter, parameter.grad());
        parameter.mutable_grad().reset();
      }
    }
    on_part_ = std::exchange(trainer_.on_part, {});
    open_window();
  }

  ~KeptTraining() {
    if (is_put_back_) return;
    std::exception_ptr unheard;  // The exception that ends the search goes on in its place.
    try {
      put_back();
    } catch (...) {
      unheard = std::current_exception();
    }
  }
  KeptTraining(const KeptTraining&) = delete;
  KeptTraining& operator=(const KeptTraining&) = delete;

  // Once. Throws what an external optimizer throws whose state is put back, as where it is interrupted; all else is
  // back then, too.
  void put_back() {
    is_put_back_ = true;
    set_tensor_memory_limit(0);  // To put back must not run out.
    try {
      rewind();
    } catch (...) {
      put_back_window();
      throw;
    }
    put_back_window();
  }

  // To where it was made, without gradients.
  void rewind() {
    for (const NamedTensors* tensors : all_parameters()) {
      for (const auto& [name, parameter] : *tensors) parameter.mutable_grad().reset();
    }
    state_.restore(parts());
    open_window();
  }

  // Of those that wait, as far as they are counted and end with their window.
  std::int64_t gradient_bytes() const {
    std::vector<at::Tensor> gradients;
    for (const auto& [parameter, gradient] : gradients_) gradients.push_back(gradient);
    return bytes_of_these_alone(gradients);
  }

 private:
  // The model's and the optimizer's, which may be others.
  std::array<const NamedTensors*, 2> all_parameters() {
    return {&trainer_.model().parameters, &trainer_.optimizer().parameters()};
  }
  RolledBack parts() {
    return {trainer_.model(),    trainer_.averages(),      trainer_.optimizer(), trainer_.external_optimizer,
            trainer_.progress(), trainer_.other_generators};
  }
  void open_window() {
    Progress& progress = trainer_.progress();
    progress = progress_;
    progress.window = 0;
    progress.window_weight = progress.largest_weight = 0;
  }
  // All that no optimizer of others has a part in.
  void put_back_window() {
    for (const NamedTensors* tensors : all_parameters()) {
      for (const auto& [name, parameter] : *tensors) parameter.mutable_grad().reset();
    }
    for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
    for (std::size_t group = 0; group < options_.size(); ++group) {
      trainer_.optimizer().set_options(options_[group], group);
    }
    trainer_.set_last_good_state(std::move(last_good_));
    trainer_.progress() = progress_;
    trainer_.set_window_notes(window_notes_);
    trainer_.on_part = std::move(on_part_);
  }

  Trainer& trainer_;
  const Progress progress_;
  const WindowNotes window_notes_;
  std::function<void(StepPart)> on_part_;
  LastGoodState state_;
  NamedTensors last_good_;
  std::vector<OptimizerOptions> options_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // Parameter and gradient, of those that have one.
  bool is_put_back_ = false;
};

// Makes the probes.
class Prober {
 public:
  // `own`: bytes of what the search keeps, which no step would hold.
  Prober(Trainer& trainer, KeptTraining& kept, const BatchOf& batch_of, std::int64_t own)
      : trainer_(trainer), kept_(kept), batch_of_(batch_of), own_(own) {}

  BatchProbe measure(std::int64_t size) {
    BatchProbe probe{.batch_size = size};
    kept_.rewind();
    reset_peak_tensor_bytes();
    bool in_update = false;
    const auto note_peak = [&] {
      const std::int64_t peak = peak_tensor_bytes() - own_;
      probe.peak_bytes = std::max(probe.peak_bytes, peak);
      if (!in_update) probe.gradient_peak_bytes = std::max(probe.gradient_peak_bytes, peak);
      reset_peak_tensor_bytes();
    };
    trainer_.on_part = [&](StepPart part) {
      if (part == StepPart::backward) probe.kept_bytes = std::max(probe.kept_bytes, tensor_bytes() - own_);
      if (part != StepPart::forward && part != StepPart::optimizer) return;
      note_peak();
      in_update = part == StepPart::optimizer;
    };
    try {
      time_steps(probe);
    } catch (...) {
      trainer_.on_part = {};
      const std::optional<std::string> reason = out_of_memory_reason(std::current_exception());
      if (!reason) throw;
      probe.ran_out = true;
      ran_out_ = *reason;
    }
    trainer_.on_part = {};
    note_peak();
    return probe;
  }

  const std::string& ran_out() const { return ran_out_; }  // The last sentence about it; empty: it never did.

 private:
  void time_steps(BatchProbe& probe) {
    const BoundForward forward = batch_of_(probe.batch_size);
    seconds_of_step(forward, probe.batch_size);  // Caches are made, and buffers that stay.
    std::vector<double> seconds;
    double sum = 0;
    while (seconds.size() < kTimedLeast || (seconds.size() < kTimedMost && sum < kTimedEnough_s)) {
      seconds.push_back(seconds_of_step(forward, probe.batch_size));
      sum += seconds.back();
    }
    const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
    probe.spread_s = *slowest - *fastest;
    probe.step_s = middle_of(seconds);
  }

  // Where the trainer accumulates, of a window of two micro-batches, whose second finds the gradients of the first;
  // of one of them.
  double seconds_of_step(const BoundForward& forward, std::int64_t samples) {
    const int micro_batches = trainer_.options().gradient_accumulation_steps > 1 ? 2 : 1;
    const std::int64_t begin_ns = monotonic_ns();
    for (int i = 1; i <= micro_batches; ++i) trainer_.step(forward, samples, /*last_of_window=*/i == micro_batches);
    return seconds_since(begin_ns) / micro_batches;
  }

  Trainer& trainer_;
  KeptTraining& kept_;
  const BatchOf& batch_of_;
  const std::int64_t own_;
  std::string ran_out_;
};

std::int64_t bytes_of_all_gradients(const ModelState& model) {
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  return bytes;
}

// `held`: by tensors, before the search has bytes of its `own`; `left`: what the machine has beside them.
std::int64_t memory_limit(const BatchPlannerOptions& options, std::int64_t in_force, std::int64_t held,
                          std::optional<std::int64_t> left, std::int64_t own) {
  if (in_force > 0 && options.memory_limit > 0) return std::min(in_force, options.memory_limit);
  if (in_force > 0 || options.memory_limit > 0) return std::max(in_force, options.memory_limit);
  if (!left) {
    fail(ErrorCode::unsupported,
         "train: plan_batch_size: memory_limit: wanted one, as what the machine has left is unavailable");
  }
  return limit_of_machine(held, *left, own);
}

// What may be held while a probe is made, beside which the search has `own` bytes. Never more than there is: a system
// that has promised too much ends the process.
std::int64_t limit_of_probes(std::int64_t limit, std::int64_t own, std::optional<std::int64_t> most) {
  if (!most) return limit + own;
  return std::min(static_cast<std::int64_t>(kProbeShare * static_cast<double>(limit)) + own, *most);
}

[[noreturn]] void fail_for_one(const BatchProbe& probe, std::int64_t waiting, std::int64_t limit,
                               const std::string& ran_out) {
  if (probe.ran_out) {
    fail(ErrorCode::out_of_memory, "train: plan_batch_size: memory_limit: wanted enough for one sample, found {}; {}",
         limit, ran_out);
  }
  fail(ErrorCode::out_of_memory, "train: plan_batch_size: memory_limit: wanted {} bytes for one sample, found {}",
       probe.peak_bytes + waiting, limit);
}

void keep_global_batch(BatchPlan& plan, std::int64_t global, const ModelState& model) {
  const MicroBatches parts = micro_batches_of(global, plan.batch_size);
  if (global % parts.size != 0) {
    plan.reason += fmt::format("; {} has no divisor near, so that the last micro-batch is smaller", global);
  }
  plan.batch_size = parts.size;
  plan.gradient_accumulation_steps = parts.count;
  if (parts.count > 1 && has_running_statistics(model)) {
    plan.reason +=
        fmt::format("; the result of the model's BatchNorm depends on {} samples then, not on {}", parts.size, global);
  }
}

// Of the updates that were probed, which do not grow with the batch; 0: none held more than what came before it.
std::int64_t update_peak(const BatchPlan& plan) {
  std::int64_t peak = 0;
  for (const BatchProbe& probe : plan.probes) {
    const bool is_of_update = !probe.ran_out && probe.peak_bytes > probe.gradient_peak_bytes;
    if (is_of_update && probe.peak_bytes <= plan.memory_limit) peak = std::max(peak, probe.peak_bytes);
  }
  return peak;
}

}  // namespace

BatchPlan plan_batch_size(Trainer& trainer, const BatchOf& batch_of, const BatchPlannerOptions& options) {
  const std::int64_t begin_ns = monotonic_ns();
  check(trainer, options);
  if (const Applied counted = watch_tensor_memory(); !counted.reason.empty()) {
    fail(ErrorCode::unsupported, "train: plan_batch_size: wanted to count the memory of tensors: {}", counted.reason);
  }
  const std::int64_t global = options.global_batch_size;
  count_training(trainer.model(), trainer.averages(), trainer.optimizer());
  count_tensors(trainer.last_good_state());
  give_freed_memory_back();  // Or pages that the arena keeps for later would not be left.
  BatchPlan plan;
  {
    const SearchLimit search_limit;
    const std::optional<std::int64_t> left = free_memory();
    const std::int64_t before = tensor_bytes();
    KeptTraining kept(trainer);
    // Copies, and the gradients of an open window, which are not there while a step of another is made.
    const std::int64_t own = tensor_bytes() - before + kept.gradient_bytes();
    plan.memory_limit = memory_limit(options, search_limit.before(), before, left, own);
    kept.rewind();  // The state of an external optimizer may be older than the count; from here on it is not.
    const std::int64_t held = tensor_bytes() - own;
    const std::int64_t gradients = bytes_of_all_gradients(trainer.model());
    plan.fixed_bytes = held + gradients;
    if (plan.fixed_bytes >= plan.memory_limit) {
      fail(
          ErrorCode::out_of_memory,
          "train: plan_batch_size: memory_limit: wanted more than the {} bytes of parameters, gradients, optimizer and "
          "all else that is held, found {}",
          plan.fixed_bytes, plan.memory_limit);
    }
    // Micro-batches behind the first find its gradients, which the steps of a trainer that does not accumulate do not.
    const bool accumulates = global > 0 && trainer.options().gradient_accumulation_steps == 1;
    const std::int64_t waiting = accumulates ? gradients : 0;
    Prober prober(trainer, kept, batch_of, own);
    set_tensor_memory_limit(
        limit_of_probes(plan.memory_limit, own, left ? std::optional(before + *left) : std::nullopt));
    const std::int64_t most = global > 0 ? std::min(options.max_batch_size, global) : options.max_batch_size;
    const SearchBounds bounds{.initial = std::min(options.initial_batch_size, most),
                              .max = most,
                              .held = held,
                              .limit = plan.memory_limit - waiting,
                              .target = options.target_throughput};
    SearchResult found = search_batch_size(bounds, [&prober](std::int64_t size) { return prober.measure(size); });
    if (found.batch_size == 0) fail_for_one(found.probes.back(), waiting, plan.memory_limit, prober.ran_out());
    plan.probes = std::move(found.probes);
    plan.batch_size = found.batch_size;
    plan.largest_batch_size = found.largest;
    plan.bytes_per_sample = found.slope;
    plan.activation_bytes = found.intercept - static_cast<double>(plan.fixed_bytes);
    plan.reason = std::move(found.reason);
    if (global > 0) keep_global_batch(plan, global, trainer.model());
    const std::int64_t up_to_update =
        predict_peak_bytes(plan, plan.batch_size) + (plan.gradient_accumulation_steps > 1 ? waiting : 0);
    plan.predicted_peak = std::max(up_to_update, update_peak(plan));
    kept.put_back();
  }
  for (const BatchProbe& probe : plan.probes) {
    if (probe.batch_size != plan.batch_size || probe.ran_out) continue;
    plan.samples_per_second = static_cast<double>(probe.batch_size) / probe.step_s;
    if (plan.gradient_accumulation_steps == 1) plan.predicted_peak = probe.peak_bytes;
  }
  plan.memory_fraction = static_cast<double>(plan.predicted_peak) / static_cast<double>(plan.memory_limit);
  give_freed_memory_back();
  plan.search_s = seconds_since(begin_ns);
  return plan;
}

std::int64_t predict_peak_bytes(const BatchPlan& plan, std::int64_t batch_size) {
  return std::llround(static_cast<double>(plan.fixed_bytes) + plan.activation_bytes +
                      plan.bytes_per_sample * static_cast<double>(batch_size));
}

std::int64_t predict_batch_size(const BatchPlan& plan, std::int64_t memory_limit) {
  const double left = static_cast<double>(memory_limit - plan.fixed_bytes) - plan.activation_bytes;
  return left < plan.bytes_per_sample ? 0 : static_cast<std::int64_t>(left / plan.bytes_per_sample);
}

}  // namespace headrace
