#include <ATen/ops/cross_entropy_loss.h>
#include <headrace/facade/optimized_optimizer.h>
#include <headrace/facade/optimized_trainer.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "facade/kept_determinism.h"
#include "facade/lent_optimizer.h"
#include "facade/setting_row.h"

namespace headrace::facade {
namespace {

constexpr double kLearningRate = 0.001;  // Where none is given: AdamW's of torch.
constexpr std::string_view kOfTheLoader =
    "a Loader has options of its own (DataOptions), which are not changed once it is made";
constexpr std::string_view kOwnWorkers = "nobody has said it, and a default leaves the loader's own";
constexpr std::string_view kNoLoop = "wanted a training loop, which was not begun";
constexpr std::string_view kNotBuilt = "its part is not built yet";

// Why a setting that neither model nor training looks at is not applied.
std::string_view why_not(std::string_view name) {
  if (name == "optimization_level" || name == "memory_format") return "";
  if (name == "batch_size_optimization") return "wanted BatchOptimizer::optimize_batch_size(), which searches one";
  const std::string_view of_loader[] = {"pin_memory", "persistent_workers", "prefetch_factor",
                                        "enable_async_data_loading"};
  return std::find(std::begin(of_loader), std::end(of_loader), name) == std::end(of_loader) ? kNotBuilt : kOfTheLoader;
}

const Applied* row_of(const std::vector<Applied>& rows, std::string_view key) {
  const auto found = std::find_if(rows.begin(), rows.end(), [key](const Applied& row) { return row.key == key; });
  return found == rows.end() ? nullptr : &*found;
}

void check_at_least_one(std::string_view name, std::int64_t value) {
  if (value >= 1) return;
  fail(ErrorCode::invalid_argument, "facade: {}: wanted a whole number above 0, found {}", name, value);
}

nlohmann::ordered_json summary_of(const PerformanceOptimizer& optimizer, const std::vector<TrainingResults>& loops) {
  nlohmann::ordered_json json{{"config", nlohmann::ordered_json::parse(optimizer.config().to_json())},
                              {"features", nlohmann::ordered_json::object()},
                              {"training_loops", nlohmann::ordered_json::array()}};
  for (const Applied& row : optimizer.get_optimization_status()) {
    json["features"][row.key] = {{"requested", row.requested}, {"applied", row.applied}, {"reason", row.reason}};
  }
  for (const TrainingResults& loop : loops) {
    nlohmann::ordered_json told = nlohmann::ordered_json::parse(loop.to_json());
    told.erase("features");
    json["training_loops"].push_back(std::move(told));
  }
  return json;
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

PerformanceOptimizer::PerformanceOptimizer(const PerformanceConfig& config)
    : config_(config), model_optimizer_(config), training_optimizer_(config) {}

PerformanceOptimizer::PerformanceOptimizer(OptimizationLevel level) : PerformanceOptimizer(PerformanceConfig(level)) {}

void PerformanceOptimizer::set_up(Loader& loader) {
  num_workers_.reset();
  if (config_.set_by("num_workers") == SetBy::by_default) return;
  loader.set_num_workers(config_->num_workers);
  num_workers_ = loader.applied_num_workers();
  num_workers_->key = "num_workers";
}

TrainingLoop PerformanceOptimizer::begin_loop(ModelState model, Optimizer optimizer, Forward forward, Loader& loader) {
  set_up(loader);
  TrainingLoop loop = training_optimizer_.begin(std::move(model), std::move(optimizer), std::move(forward), loader);
  model_optimizer_.optimize_model(loop.trainer());
  of_loop_ = loop.report();
  return loop;
}

TrainingResults PerformanceOptimizer::optimize_training_loop(const ModelState& model, Loader& loader,
                                                             Optimizer& optimizer, const Forward& forward,
                                                             std::int64_t num_epochs) {
  check_at_least_one("num_epochs", num_epochs);
  TrainingLoop loop = begin_loop(model, optimizer, forward, loader);
  const LentOptimizer lent(optimizer, loop.trainer());
  for (std::int64_t epoch = 0; epoch < num_epochs; ++epoch) loop.train_epoch(loader);
  TrainingResults results = loop.results();
  of_loop_ = results.features;
  loops_.push_back(results);
  return results;
}

std::vector<Applied> PerformanceOptimizer::get_optimization_status() const {
  const std::vector<Applied> of_model = model_optimizer_.report();
  const std::vector<Applied> of_loop = of_loop_.value_or(training_optimizer_.report());
  std::vector<Applied> rows;
  for (const std::string& name : performance_setting_names()) {
    const Applied* row = row_of(of_model, name);
    if (row == nullptr) row = row_of(of_loop, name);
    if (row == nullptr && name == "num_workers" && num_workers_) row = &*num_workers_;
    std::string_view reason = why_not(name);
    if (name == "num_workers") reason = config_.set_by(name) == SetBy::by_default ? kOwnWorkers : kNoLoop;
    rows.push_back(row == nullptr ? setting_row(config_, name, reason) : *row);
  }
  return rows;
}

std::string PerformanceOptimizer::get_performance_summary() const {
  return summary_of(*this, loops_).dump(2);
}

TrainingResults optimize_training_loop(const ModelState& model, Loader& loader, Optimizer& optimizer,
                                       const Forward& forward, std::int64_t num_epochs,
                                       const PerformanceConfig& config) {
  return PerformanceOptimizer(config).optimize_training_loop(model, loader, optimizer, forward, num_epochs);
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
