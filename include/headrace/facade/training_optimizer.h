// Training loops as a PerformanceConfig says, by a Trainer, under the names of the Python package
// performance_optimization.
#pragma once

#include <headrace/facade/performance_config.h>
#include <headrace/facade/training_config.h>
#include <headrace/loader.h>
#include <headrace/memory_timeline.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/time_split.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::facade {

struct EpochResult {
  std::int64_t epoch = 0;  // From 1.
  double loss = 0;         // Mean over its samples.
  std::int64_t samples = 0;
  double seconds = 0;
  std::int64_t optimizer_steps = 0;                // In all.
  std::int64_t skipped_updates = 0;                // In this epoch.
  std::optional<std::int64_t> resident_memory{};   // Bytes; nullopt: unavailable.
  std::optional<TimeSplit> profile{};              // With enable_profiling; of a long epoch the newest steps.
  std::optional<MemoryTimeline> memory_profile{};  // With enable_memory_profiling.
};

struct TrainingResults {
  std::vector<EpochResult> epochs{};
  std::int64_t memory_cleanups = 0;
  std::vector<Applied> features{};  // By setting requested, applied ("none": it is not) and why not.

  double seconds() const;  // Of all epochs, as the two below.
  std::optional<double> samples_per_second() const;
  std::int64_t skipped_updates() const;
  std::string to_json() const;  // All of it, on several lines.
};

// Epochs of one Trainer. Not thread-safe.
class TrainingLoop {
 public:
  // Settings of `config` that this looks at:
  //
  // enable_amp: float16 with a loss scale that begins at 65536, where the model is on CUDA.
  // gradient_accumulation, gradient_accumulation_steps: batches in an update; AUTOTUNE is what
  //   setup_gradient_accumulation() gives for the batch size of the loader. The last window of an epoch is the mean of
  //   the batches that it has.
  // enable_memory_optimization, memory_threshold: after an epoch in which tensors hold more than this share of a CUDA
  //   device's memory at its end, what its allocator keeps unused is given back.
  // enable_profiling, enable_memory_profiling: an epoch's result has profile, and memory_profile.
  //
  // Error{invalid_argument}: the model has no parameters, no optimizer is possible for it, or AUTOTUNE finds no batch
  // size.
  TrainingLoop(const PerformanceConfig& config, ModelState model, Optimizer optimizer, Forward forward,
               const Loader& loader);
  ~TrainingLoop();
  TrainingLoop(TrainingLoop&& other) noexcept;

  // One more epoch, of the loader's with the same number, in training mode. Error{cancelled}: a signal asked to stop;
  // and what the loader, as for an epoch without a batch, and a Trainer's steps throw.
  EpochResult train_epoch(Loader& loader);

  Trainer& trainer();
  const Progress& progress() const;
  TrainingResults results() const;
  const std::vector<EpochResult>& epochs() const;
  std::vector<Applied> report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class TrainingOptimizer {
 public:
  explicit TrainingOptimizer(PerformanceConfig config = PerformanceConfig());

  // A loop of which nothing was trained yet. Errors as TrainingLoop's.
  TrainingLoop begin(ModelState model, Optimizer optimizer, Forward forward, const Loader& loader) const;
  // The whole loop; the optimizer's state goes on from what it has, and is the caller's again afterwards, also by
  // exception. Error{invalid_argument}: num_epochs below 1; and what TrainingLoop says.
  TrainingResults train(const ModelState& model, Loader& loader, Optimizer& optimizer, const Forward& forward,
                        std::int64_t num_epochs = 10);
  // Of the last loop that train() ended; before, that none was run.
  std::vector<Applied> report() const;

 private:
  PerformanceConfig config_;
  std::optional<std::vector<Applied>> report_;
};

struct TrainingLoss {
  double train_loss = 0;  // Mean over the epoch's samples.
};

// One epoch in training mode by a Trainer, an update a batch, with the loader's epoch 0. `device` is the model's. Where
// the configuration does not say no, a step is in float16 on CUDA, with a loss scale that begins at 65536 in each call;
// on a CPU steps are in full precision. With CUDA, cuDNN looks for its fastest algorithms and need not be deterministic
// meanwhile. Error{invalid_argument}: the model is elsewhere or has no parameters, two names of mixed precision differ,
// or the loader has no batch. Error{numerics}: a loss or gradient is not finite.
TrainingLoss optimized_training_loop(const ModelState& model, Loader& train_loader, Optimizer& optimizer,
                                     const Forward& forward, c10::Device device, const TrainingConfig& config = {});

}  // namespace headrace::facade
