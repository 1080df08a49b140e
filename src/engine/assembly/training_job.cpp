#include "engine/assembly/training_job.h"

#include <ATen/core/Tensor.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "app/knobs/knob.h"
#include "core/base/fail.h"
#include "engine/assembly/kept_loop.h"
#include "engine/assembly/state.h"
#include "engine/assembly/trial_process.h"
#include "engine/assembly/trial_protocol.h"
#include "torch/tensor/compute.h"
#include "torch/train/loop.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

// Whole updates, at least one.
std::int64_t pass_batches(const Training& training) {
  const Recipe& recipe = training.recipe();
  const std::int64_t all = training.batches_per_epoch(), update = recipe.train.gradient_accumulation_steps;
  if (recipe.tune.samples_max == 0) return all;
  const std::int64_t wanted = recipe.tune.samples_max / recipe.data.batch_size / update * update;
  return std::min(all, std::max(wanted, update));
}

// One that hangs takes no more of the budget than this; a small budget is no reason to call a slow start a hang.
std::chrono::milliseconds process_timeout(double budget_s) {
  constexpr double kShare = 0.25, kLeast_s = 10;
  return std::chrono::milliseconds(std::llround(1000 * std::max(kLeast_s, kShare * budget_s)));
}

}  // namespace

struct TrainingJob::Saved {
  std::vector<at::Tensor> tensors;  // In the order of everything().
  at::Tensor generator;
  Progress progress;
};

TrainingJob::TrainingJob(const Recipe& recipe, const Machine& machine)
    : baseline_(recipe),
      memory_limit_(machine.memory_limit),
      training_(std::make_unique<Training>(recipe, machine)),
      pass_batches_(pass_batches(*training_)),
      planted_(recipe.tune.planted, static_cast<std::uint64_t>(recipe.seed), training_->trainer()),
      machine_(machine) {
  strategy_context_.trainer = &training_->trainer();
  hear_parts();
}

TrainingJob::~TrainingJob() = default;

NamedTensors TrainingJob::trained() {
  NamedTensors tensors = weights_of(training_->trainer().model());
  const auto optimizer = training_->trainer().optimizer().state();
  tensors.insert(tensors.end(), optimizer.begin(), optimizer.end());
  return tensors;
}

NamedTensors TrainingJob::everything() {
  NamedTensors all = trained();
  const auto& averages = training_->trainer().averages();
  all.insert(all.end(), averages.begin(), averages.end());
  return all;
}

void TrainingJob::snapshot() {
  saved_ = std::make_unique<Saved>(Saved{{}, generator_state(), training_->trainer().progress()});
  for (const auto& [name, tensor] : everything()) saved_->tensors.push_back(tensor.detach().clone());
}

void TrainingJob::restore() {
  HEADRACE_CHECK(saved_ != nullptr, "restore() without snapshot()");
  put_values(everything(), saved_->tensors);
  training_->trainer().optimizer().zero_gradients();
  set_generator_state(saved_->generator);
  training_->trainer().progress() = saved_->progress;
  epoch_.reset();
}

void TrainingJob::configure(const Settings& settings) {
  try {
    const PlantedKnobs::Division divided = planted_.divide(strategies_.set(settings, strategy_context_));
    Recipe next = baseline_;
    apply_settings(next, divided.others);
    if (training_->needs_other_loader(next)) epoch_.reset();
    training_->apply_live(next, divided.others);
    planted_.set_on(divided.on);
  } catch (...) {
    std::erase_if(settings_, [this](const auto& setting) { return strategies_.ended().contains(setting.first); });
    strategies_.set(settings_, strategy_context_);
    throw;
  }
  settings_ = settings;
}

void TrainingJob::undo_strategies() {
  strategies_.set({}, strategy_context_);
  for (const std::string& key : strategies_.keys()) settings_.erase(key);
}

std::vector<double> TrainingJob::run(std::int64_t steps) {
  if (idle_s_ > 0) return run_idle(steps);
  Trainer& trainer = training_->trainer();
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(steps));
  const auto note = [&](const StepDone& done) {
    seconds.push_back(static_cast<double>(done.step_ns) * 1e-9);
    if (use_) use_->end_step(true);
  };
  const BatchStream cached{[this] { return cached_; }, std::numeric_limits<std::int64_t>::max()};
  while (static_cast<std::int64_t>(seconds.size()) < steps) {
    const std::int64_t left = steps - static_cast<std::int64_t>(seconds.size());
    LoopEnd end;
    if (cached_) {
      end = run_steps(trainer, use_ ? counted_stream() : cached, left, note);
    } else {
      begin_pass_again_where_due();
      if (!epoch_) epoch_.emplace(training_->loader().epoch(trainer.progress().epoch, trainer.progress().batch));
      const std::int64_t most = std::min(left, pass_batches_ - trainer.progress().batch);
      end = use_ ? run_steps(trainer, counted_stream(), most, note) : run_steps(trainer, *epoch_, most, note);
    }
    if (end == LoopEnd::epoch) epoch_.reset();
    if (end == LoopEnd::stopped) fail(ErrorCode::cancelled, "tune: stopped");
  }
  return seconds;
}

// The epoch stays the same, and so do its samples.
void TrainingJob::begin_pass_again_where_due() {
  Progress& progress = training_->trainer().progress();
  if (progress.batch < pass_batches_) return;
  progress.batch = 0;
  epoch_.reset();
}

TensorBatch TrainingJob::batch_for_checks(std::int64_t index) {
  return load_batch(0, index % training_->batches_per_epoch());
}

TensorBatch TrainingJob::load_batch(std::int64_t epoch, std::int64_t index) {
  epoch_.reset();
  Epoch pass = training_->loader().epoch(epoch, index);
  const std::optional<Batch> batch = pass.next();
  if (!batch) fail(ErrorCode::invalid_argument, "assembly: the training data gives no batch");
  return training_->trainer().transfer(*batch);
}

ExactResult TrainingJob::exact_fingerprint(std::int64_t batch_index) {
  if (baseline_.train.precision != Precision::fp32) {
    return {std::nullopt, fmt::format("train.precision is {}: the loop as written is not computed in float32",
                                      choice_name(baseline_.train.precision))};
  }
  const auto resident = resident_memory(), peak = peak_memory();
  if (memory_limit_ && resident && peak && *resident + 2 * *peak > *memory_limit_) {
    return {std::nullopt,
            fmt::format("it is estimated to need {} MiB beside the {} MiB in use, and the limit is {} MiB",
                        2 * *peak >> 20, *resident >> 20, *memory_limit_ >> 20)};
  }
  const at::Tensor generator = generator_state();
  const std::unique_ptr<Network> network = training_->float64_network();
  set_generator_state(generator);
  TensorBatch batch = batch_for_checks(batch_index);
  batch["image"] = batch["image"].to(at::kDouble);
  const Output output = classification_forward(*network, baseline_.loss)(batch);
  output.loss.backward();
  set_generator_state(generator);
  NamedTensors gradients;
  const ModelState state = network->state();
  for (const auto& [name, parameter] : state.parameters) {
    if (parameter.grad().defined()) gradients.emplace_back(name, parameter.grad());
  }
  return {ExactFingerprint{output.loss.item<double>(), exact_gradients(gradients)}, {}};
}

Fingerprint TrainingJob::fingerprint(std::int64_t batch_index) {
  return fingerprint_of(batch_for_checks(batch_index));
}

Fingerprint TrainingJob::fingerprint_as_loaded(std::int64_t batch_index) {
  const std::int64_t batches = training_->batches_per_epoch();
  return fingerprint_of(load_batch(batch_index / batches, batch_index % batches));
}

Fingerprint TrainingJob::fingerprint_of(const TensorBatch& batch) {
  Trainer& trainer = training_->trainer();
  const KeptLoop kept{trainer};
  const Output output = trainer.forward_backward(batch);
  planted_.spoil_gradients();
  return {output.loss.item<double>(), gradients_of(trainer.model().parameters)};
}

std::uint64_t TrainingJob::state_hash() {
  return hash_of(weights_of(training_->trainer().model()));
}

double TrainingJob::update_difference(const Settings& a, const Settings& b) {
  Trainer& trainer = training_->trainer();
  configure(b);
  restore();
  const Fingerprint given = fingerprint(0);
  const auto updated = [&](const Settings& settings) {
    configure(settings);
    restore();
    set_gradients(trainer.model().parameters, given.gradients);
    trainer.optimizer().step(trainer.learning_rate());
    NamedTensors after = copies_of(trained());
    restore();
    return after;
  };
  return state_difference(updated(a), updated(b));
}

std::int64_t TrainingJob::samples_per_step() const {
  return baseline_.data.batch_size;
}

std::unique_ptr<Job> TrainingJob::in_processes(const Settings& first, const Settings& second) {
  if (trial_command_.empty()) return nullptr;
  // What of this process would take cores from them: the loader, and compute threads that wait for the next operator.
  epoch_.reset();
  end_idle_compute_threads();
  return std::make_unique<TrialProcesses>(first, second, samples_per_step(),
                                          [this](const Settings& settings) { return start_process(settings); });
}

std::unique_ptr<TrialArm> TrainingJob::start_process(const Settings& settings) const {
  const auto resident = resident_memory();
  if (memory_limit_ && resident && 3 * *resident > *memory_limit_) {
    fail(ErrorCode::out_of_memory,
         "assembly: two more processes like this one, of {} MiB, are beyond the limit of {} MiB", *resident >> 20,
         *memory_limit_ >> 20);
  }
  Recipe recipe = baseline_;
  TrialCommand command{
      .arguments = trial_command_, .recipe = {}, .name = {}, .timeout = process_timeout(baseline_.tune.budget_s)};
  command.arguments.emplace_back(fmt::format("/proc/self/fd/{}", trial::kRecipe));
  for (const auto& [key, value] : settings) {
    if (needs_new_process(key)) {
      apply_settings(recipe, {{key, value}});
    } else {
      command.arguments.push_back(fmt::format("{}={}", key, value));
    }
  }
  if (const std::string index = training_->trial_index_file().string(); !index.empty()) {
    command.arguments.push_back(fmt::format("{}={}", trial::kIndexKey, index));
  }
  const std::vector<Field> fields = fields_of(recipe);
  for (const Knob& knob : all_knobs()) {
    if (knob.switches != Switches::new_process) continue;
    command.name += fmt::format("{}{} = {}", command.name.empty() ? "" : ", ", knob.key,
                                to_toml(field_named(fields, std::string(knob.key)).get()));
  }
  command.recipe = write_toml(fields);
  return std::make_unique<TrialProcess>(std::move(command));
}

std::optional<LoaderWork> TrainingJob::loader_work() const {
  const LoaderStatistics statistics = training_->loader().statistics();
  if (statistics.num_workers == 0) return std::nullopt;
  return LoaderWork{static_cast<double>(statistics.busy_ns) * 1e-9, static_cast<int>(statistics.num_workers)};
}

void TrainingJob::set_loads_aside(bool loads_aside) {
  training_->loader().set_num_workers(loads_aside ? training_->recipe().data.num_workers : 0);
}

bool TrainingJob::has_fused_optimizer() const {
  return training_->recipe().optimizer.implementation() == OptimizerImplementation::fused;
}

void TrainingJob::leave_data() {
  epoch_.reset();
  before_other_data_ = training_->trainer().progress();
}

void TrainingJob::return_to_data() {
  epoch_.reset();
  training_->trainer().progress().epoch = before_other_data_.epoch;
  training_->trainer().progress().batch = before_other_data_.batch;
}

void TrainingJob::set_free_data(bool free_data) {
  if (free_data == cached_.has_value()) return;
  if (free_data) {
    leave_data();
    cached_ = training_->loader().epoch(0).next();
    if (!cached_) fail(ErrorCode::invalid_argument, "assembly: the training data gives no batch");
  } else {
    cached_.reset();
    return_to_data();
  }
}

}  // namespace headrace
