#include "engine/assembly/training_job.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "engine/assembly/state.h"
#include "torch/train/loop.h"

namespace headrace {
namespace {

constexpr std::string_view kPlantedPrefix = "planted.";

// Sleeps most of the time and spins the rest: a sleep alone is 50 to 100 us too long.
void spend_ms(double milliseconds) {
  if (milliseconds <= 0) return;
  const std::int64_t end_ns = monotonic_ns() + static_cast<std::int64_t>(milliseconds * 1e6);
  constexpr std::int64_t kSpin_ns = 200'000;
  if (const std::int64_t left_ns = end_ns - monotonic_ns(); left_ns > kSpin_ns) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns - kSpin_ns));
  }
  while (monotonic_ns() < end_ns) {
  }
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
      planted_on_(recipe.tune.planted.size(), false),
      planted_random_(static_cast<std::uint64_t>(recipe.seed), 0, 0),
      training_(std::make_unique<Training>(recipe, machine)) {
  if (!recipe.tune.planted.empty()) {
    training_->trainer().on_part = [this](StepPart part) {
      if (part == StepPart::optimizer) apply_planted();
    };
  }
}

TrainingJob::~TrainingJob() = default;

NamedTensors TrainingJob::everything() {
  ModelState& model = training_->trainer().model();
  auto all = model.parameters;
  all.insert(all.end(), model.buffers.begin(), model.buffers.end());
  const auto optimizer = training_->trainer().optimizer().state();
  all.insert(all.end(), optimizer.begin(), optimizer.end());
  return all;
}

void TrainingJob::snapshot() {
  saved_ = std::make_unique<Saved>(Saved{{}, generator_state(), training_->trainer().progress()});
  for (const auto& [name, tensor] : everything()) saved_->tensors.push_back(tensor.detach().clone());
}

void TrainingJob::restore() {
  HEADRACE_CHECK(saved_ != nullptr, "restore() without snapshot()");
  const at::NoGradGuard no_grad;
  const auto all = everything();
  for (std::size_t i = 0; i < all.size(); ++i) all[i].second.detach().copy_(saved_->tensors[i]);
  training_->trainer().optimizer().zero_gradients();
  set_generator_state(saved_->generator);
  training_->trainer().progress() = saved_->progress;
  epoch_.reset();
}

void TrainingJob::configure(const Settings& settings) {
  Recipe next = baseline_;
  Settings live;
  std::vector<bool> planted(planted_on_.size(), false);
  for (const auto& [key, value] : settings) {
    if (key.rfind(kPlantedPrefix, 0) != 0) {
      live.emplace(key, value);
      continue;
    }
    const auto& all = baseline_.tune.planted;
    const std::string_view name = std::string_view(key).substr(kPlantedPrefix.size());
    const auto found = std::find_if(all.begin(), all.end(), [name](const PlantedOptions& p) { return p.name == name; });
    if (found == all.end()) fail(ErrorCode::invalid_argument, "assembly: no planted knob for {}", key);
    planted[static_cast<std::size_t>(found - all.begin())] = value == "true";
  }
  apply_settings(next, live);
  if (training_->needs_other_loader(next)) epoch_.reset();
  training_->apply_live(next);
  for (const Applied& applied : training_->applied()) {
    if (live.contains(applied.key) && applied.applied != applied.requested) {
      fail(ErrorCode::unsupported, "assembly: {} = {} is not applied ({}): {}", applied.key, applied.requested,
           applied.applied, applied.reason);
    }
  }
  planted_on_ = planted;
}

std::vector<double> TrainingJob::run(std::int64_t steps) {
  Trainer& trainer = training_->trainer();
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(steps));
  const auto note = [&](const StepDone& done) { seconds.push_back(static_cast<double>(done.step_ns) * 1e-9); };
  const BatchStream cached{[this] { return cached_; }, std::numeric_limits<std::int64_t>::max()};
  while (static_cast<std::int64_t>(seconds.size()) < steps) {
    const std::int64_t left = steps - static_cast<std::int64_t>(seconds.size());
    LoopEnd end;
    if (cached_) {
      end = run_steps(trainer, cached, left, note);
    } else {
      if (!epoch_) epoch_.emplace(training_->loader().epoch(trainer.progress().epoch, trainer.progress().batch));
      end = run_steps(trainer, *epoch_, left, note);
    }
    if (end == LoopEnd::epoch) epoch_.reset();
    if (end == LoopEnd::stopped) fail(ErrorCode::cancelled, "tune: stopped");
  }
  return seconds;
}

void TrainingJob::apply_planted() {
  apply_planted_gradient_error();
  for (std::size_t i = 0; i < planted_on_.size(); ++i) {
    const PlantedOptions& planted = baseline_.tune.planted[i];
    spend_ms(planted_on_[i] ? planted.on_ms : planted.off_ms);
    if (planted_on_[i] && planted.throw_probability > 0 && planted_random_.uniform() < planted.throw_probability) {
      fail(ErrorCode::internal, "assembly: planted knob {} threw", planted.name);
    }
  }
}

void TrainingJob::apply_planted_gradient_error() {
  for (std::size_t i = 0; i < planted_on_.size(); ++i) {
    const double error = baseline_.tune.planted[i].gradient_error;
    if (!planted_on_[i] || error == 0) continue;
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : training_->trainer().model().parameters) {
      // Every element off by the same share, with alternating sign: the relative L2 error is exactly `error`.
      if (!parameter.grad().defined()) continue;
      std::vector<float> values = float_values(parameter.grad());
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] *= static_cast<float>(1.0 + (j % 2 == 0 ? error : -error));
      }
      parameter.grad().copy_(at::from_blob(values.data(), parameter.grad().sizes()));
    }
  }
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
    return {std::nullopt, "train.precision is bf16: the loop as written is not computed in float32"};
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
  const Output output = classification_forward(*network)(batch);
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
  const at::Tensor generator = generator_state();
  std::vector<at::Tensor> buffers;
  for (const auto& [name, tensor] : trainer.model().buffers) buffers.push_back(tensor.clone());
  const auto put_back = [&] {
    trainer.optimizer().zero_gradients();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers.size(); ++i) trainer.model().buffers[i].second.copy_(buffers[i]);
    set_generator_state(generator);
  };

  Fingerprint result;
  try {
    const Output output = trainer.forward_backward(batch);
    apply_planted_gradient_error();
    result.loss = output.loss.item<double>();
    result.gradients = gradients_of(trainer.model().parameters);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return result;
}

std::uint64_t TrainingJob::state_hash() {
  const ModelState& model = training_->trainer().model();
  NamedTensors tensors = model.parameters;
  tensors.insert(tensors.end(), model.buffers.begin(), model.buffers.end());
  return hash_of(tensors);
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
    NamedTensors after = copies_of(everything());
    restore();
    return after;
  };
  return state_difference(updated(a), updated(b));
}

std::int64_t TrainingJob::samples_per_step() const {
  return baseline_.data.batch_size;
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

void TrainingJob::set_free_data(bool free_data) {
  if (free_data == cached_.has_value()) return;
  Trainer& trainer = training_->trainer();
  epoch_.reset();
  if (free_data) {
    before_free_data_ = trainer.progress();
    cached_ = training_->loader().epoch(0).next();
    if (!cached_) fail(ErrorCode::invalid_argument, "assembly: the training data gives no batch");
  } else {
    cached_.reset();
    trainer.progress().epoch = before_free_data_.epoch;
    trainer.progress().batch = before_free_data_.batch;
  }
}

}  // namespace headrace
