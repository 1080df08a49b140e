// A trainer from one PerformanceConfig, and a model with fit(), under the names of the Python package
// performance_optimization.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_optimizer.h>
#include <headrace/facade/training_optimizer.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::facade {

// The forward of a model that is called with batch["image"]: the loss is criterion(outputs, batch["labels"]), by
// default cross entropy, and the outputs are its "logits".
using Criterion = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;
Forward forward_by(std::function<at::Tensor(const at::Tensor& inputs)> call, Criterion criterion = {});

struct ValidationResult {
  std::int64_t epoch = 0;
  double val_loss = 0;  // Mean over the samples.
  double accuracy = 0;
  std::int64_t samples = 0;
};

// Trains and validates a model by a Trainer. An optimizer that is not given is create_optimized_optimizer()'s, AdamW at
// a learning rate of 0.001. Not thread-safe.
class OptimizedTrainer {
 public:
  OptimizedTrainer(ModelState model, Forward forward, const PerformanceConfig& config = PerformanceConfig(),
                   std::optional<Optimizer> optimizer = std::nullopt);
  // By the configuration of `performance_optimizer`, which must outlive this.
  OptimizedTrainer(ModelState model, Forward forward, PerformanceOptimizer& performance_optimizer,
                   std::optional<Optimizer> optimizer = std::nullopt);
  ~OptimizedTrainer();

  // One epoch in training mode; which one it is called in the results. The first call sets model and loader up, and
  // fixes how many batches an update has. Error{invalid_argument}: `epoch` is not from 1 to num_epochs, or the loader
  // gives no batch.
  EpochResult train_epoch(Loader& loader, std::int64_t epoch, std::int64_t num_epochs);
  // evaluate() of a Trainer: weights, buffers and gradients stay. Error{invalid_argument}: the epoch is below 1; and
  // what evaluate() says.
  ValidationResult validate(Loader& loader, std::int64_t epoch);
  // JSON: the performance optimizer's, and training_metrics: epochs, validations, progress.
  std::string get_performance_summary() const;

 private:
  ModelState model_;
  Forward forward_;
  std::unique_ptr<PerformanceOptimizer> own_;
  PerformanceOptimizer& performance_optimizer_;
  std::optional<Optimizer> optimizer_;  // Until the first epoch; then it is the loop's.
  std::optional<TrainingLoop> loop_;
  std::vector<EpochResult> epochs_;
  std::vector<ValidationResult> validations_;
};

// A model with fit(). By default nothing is asked for but the loop, an update a batch.
class TrainableModel {
 public:
  TrainableModel(ModelState model, Forward forward, std::optional<Optimizer> optimizer = std::nullopt,
                 const PerformanceConfig& config = PerformanceConfig(OptimizationLevel::custom));

  // Trains `epochs` more epochs. The history: one value an epoch of "loss", "seconds", "samples_per_second" and
  // "skipped_updates", and of "val_loss" with validation data. Error{invalid_argument}: epochs below 1; and what
  // OptimizedTrainer says.
  std::map<std::string, std::vector<double>> fit(Loader& loader, std::int64_t epochs = 10,
                                                 Loader* validation_data = nullptr);

  OptimizedTrainer trainer;
};

}  // namespace headrace::facade
