#include <ATen/ops/cross_entropy_loss.h>
#include <headrace/facade/optimized_optimizer.h>
#include <headrace/facade/optimized_trainer.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "facade/kept_determinism.h"

namespace headrace::facade {
namespace {

constexpr double kLearningRate = 0.001;  // Where none is given: AdamW's of torch.

void check_at_least_one(std::string_view name, std::int64_t value) {
  if (value >= 1) return;
  fail(ErrorCode::invalid_argument, "facade: {}: wanted a whole number above 0, found {}", name, value);
}

}  // namespace

Forward forward_by(std::function<at::Tensor(const at::Tensor&)> call, Criterion criterion) {
  if (!criterion) {
    criterion = [](const at::Tensor& outputs, const at::Tensor& targets) {
      return at::cross_entropy_loss(outputs, targets);
    };
  }
  return [call = std::move(call), criterion = std::move(criterion)](const TensorBatch& batch) -> Output {
    const at::Tensor outputs = call(batch["image"]);
    return {criterion(outputs, batch["labels"]), {{"logits", outputs}}};
  };
}

OptimizedTrainer::OptimizedTrainer(ModelState model, Forward forward, const PerformanceConfig& config,
                                   std::optional<Optimizer> optimizer)
    : model_(std::move(model)),
      forward_(std::move(forward)),
      own_(std::make_unique<PerformanceOptimizer>(config)),
      performance_optimizer_(*own_),
      optimizer_(std::move(optimizer)) {
  if (!optimizer_) optimizer_ = create_optimized_optimizer(model_, {.model_config = {.learning_rate = kLearningRate}});
}

OptimizedTrainer::OptimizedTrainer(ModelState model, Forward forward, PerformanceOptimizer& performance_optimizer,
                                   std::optional<Optimizer> optimizer)
    : model_(std::move(model)),
      forward_(std::move(forward)),
      performance_optimizer_(performance_optimizer),
      optimizer_(std::move(optimizer)) {
  if (!optimizer_) optimizer_ = create_optimized_optimizer(model_, {.model_config = {.learning_rate = kLearningRate}});
}

OptimizedTrainer::~OptimizedTrainer() = default;

EpochResult OptimizedTrainer::train_epoch(Loader& loader, std::int64_t epoch, std::int64_t num_epochs) {
  check_at_least_one("num_epochs", num_epochs);
  if (epoch < 1 || epoch > num_epochs) {
    fail(ErrorCode::invalid_argument, "facade: epoch: wanted one from 1 to {}, found {}", num_epochs, epoch);
  }
  if (!loop_) {
    loop_.emplace(performance_optimizer_.begin_loop(model_, *optimizer_, forward_, loader));
    optimizer_.reset();
  }
  EpochResult result = loop_->train_epoch(loader);
  performance_optimizer_.of_loop_ = loop_->report();
  result.epoch = epoch;
  epochs_.push_back(result);
  return result;
}

ValidationResult OptimizedTrainer::validate(Loader& loader, std::int64_t epoch) {
  check_at_least_one("epoch", epoch);
  const auto told = [&](Trainer& trainer) {
    const Evaluation found = evaluate(trainer, loader);
    return ValidationResult{epoch, found.loss, found.accuracy, found.samples};
  };
  ValidationResult result;
  if (loop_) {
    result = told(loop_->trainer());
  } else {  // The loop's goes by the loader of training.
    const KeptDeterminism determinism;
    TrainOptions options;
    options.deterministic = determinism.is_on();
    Trainer trainer(model_, *optimizer_, forward_, options, LrSchedulerOptions{}, /*optimizer_steps_total=*/1);
    result = told(trainer);
  }
  validations_.push_back(result);
  return result;
}

std::string OptimizedTrainer::get_performance_summary() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(performance_optimizer_.get_performance_summary());
  nlohmann::ordered_json& metrics = json["training_metrics"];
  metrics["epochs"] = nlohmann::ordered_json::parse(TrainingResults{.epochs = epochs_}.to_json())["epochs"];
  metrics["validations"] = nlohmann::ordered_json::array();
  for (const ValidationResult& each : validations_) {
    metrics["validations"].push_back(
        {{"epoch", each.epoch}, {"val_loss", each.val_loss}, {"accuracy", each.accuracy}, {"samples", each.samples}});
  }
  metrics["progress"] = nullptr;
  if (loop_) {
    const Progress& progress = loop_->progress();
    metrics["progress"] = {{"epoch", progress.epoch},
                           {"optimizer_steps", progress.optimizer_steps},
                           {"skipped_updates", progress.skipped_updates}};
  }
  return json.dump(2);
}

TrainableModel::TrainableModel(ModelState model, Forward forward, std::optional<Optimizer> optimizer,
                               const PerformanceConfig& config)
    : trainer(std::move(model), std::move(forward), config, std::move(optimizer)) {}

std::map<std::string, std::vector<double>> TrainableModel::fit(Loader& loader, std::int64_t epochs,
                                                               Loader* validation_data) {
  check_at_least_one("epochs", epochs);
  std::map<std::string, std::vector<double>> history;
  for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
    const EpochResult result = trainer.train_epoch(loader, epoch, epochs);
    history["loss"].push_back(result.loss);
    history["seconds"].push_back(result.seconds);
    history["samples_per_second"].push_back(static_cast<double>(result.samples) / result.seconds);
    history["skipped_updates"].push_back(static_cast<double>(result.skipped_updates));
    if (validation_data == nullptr) continue;
    history["val_loss"].push_back(trainer.validate(*validation_data, epoch).val_loss);
  }
  return history;
}

}  // namespace headrace::facade
