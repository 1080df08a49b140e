#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/optimized_optimizer.h>
#include <headrace/facade/optimized_trainer.h>
#include <headrace/facade/profile.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "facade/regression.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;

std::unique_ptr<Loader> loader_of(std::int64_t samples, bool training = true) {
  return std::make_unique<Loader>(std::make_shared<tiny::Images>(samples), tiny::batches_of(4), /*seed=*/1, training);
}

// The same weights each time.
struct TinyRun {
  tiny::Cnn network = made();

  Forward forward() const {
    return [this](const TensorBatch& batch) { return network(batch); };
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : network.state().parameters) all.push_back(parameter);
    return all;
  }

 private:
  static tiny::Cnn made() {
    at::manual_seed(1);
    return tiny::Cnn();
  }
};

TEST(OptimizedTrainer, TheExampleTrainsValidatesAndTellsOfEachEpoch) {
  const TinyRun run;
  const auto dataloader = loader_of(64), val_dataloader = loader_of(24, /*training=*/false);
  constexpr std::int64_t kEpochs = 3;

  const PerformanceConfig config({.enable_profiling = true,
                                  .enable_caching = true,
                                  .enable_parallelization = true,
                                  .enable_memory_optimization = true,
                                  .mixed_precision = true,
                                  .enable_batch_optimization = true});
  PerformanceOptimizer performance_optimizer(config);
  OptimizedTrainer trainer(run.network.state(), run.forward(), performance_optimizer);

  std::vector<json> summaries;
  std::vector<double> losses;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const EpochResult train_metrics = trainer.train_epoch(*dataloader, epoch + 1, kEpochs);
    const ValidationResult val_metrics = trainer.validate(*val_dataloader, epoch + 1);
    summaries.push_back(json::parse(trainer.get_performance_summary()));
    losses.push_back(train_metrics.loss);
    EXPECT_EQ(train_metrics.epoch, epoch + 1);
    EXPECT_EQ(train_metrics.samples, 64);
    EXPECT_EQ(val_metrics.epoch, epoch + 1);
    EXPECT_EQ(val_metrics.samples, 24);
  }
  EXPECT_NE(losses[0], losses[2]);
  EXPECT_NE(summaries[0], summaries[1]);
  const json& metrics = summaries.back()["training_metrics"];
  EXPECT_EQ(metrics["epochs"].size(), 3U);
  EXPECT_EQ(metrics["validations"].size(), 3U);
  EXPECT_EQ(metrics["epochs"][2]["epoch"], 3);
  EXPECT_EQ(metrics["progress"]["optimizer_steps"], 12);  // Windows of four batches of four.
  const json& features = summaries.back()["features"];
  for (const char* name : {"enable_profiling", "gradient_accumulation", "enable_memory_format_optimization"}) {
    EXPECT_EQ(features[name]["applied"], "true") << name;
    EXPECT_EQ(features[name]["reason"], "") << name;
  }
  for (const char* name : {"enable_caching", "enable_parallelization", "batch_size_optimization", "enable_amp",
                           "enable_memory_optimization", "enable_compile"}) {
    EXPECT_EQ(features[name]["requested"], "true") << name;
    EXPECT_EQ(features[name]["applied"], "none") << name;
    EXPECT_NE(features[name]["reason"], "") << name;
  }
}

TEST(OptimizedTrainer, WithoutAnOptimizerOneIsMadeOfAdamWAtOneThousandth) {
  const auto data = loader_of(8);
  const PerformanceConfig plain(OptimizationLevel::custom);
  const TinyRun ours, theirs;
  at::manual_seed(2);
  OptimizedTrainer(ours.network.state(), ours.forward(), plain).train_epoch(*data, 1, 1);
  at::manual_seed(2);
  OptimizedTrainer(theirs.network.state(), theirs.forward(), plain,
                   create_optimized_optimizer(theirs.network.state(), {.model_config = {.learning_rate = 0.001}}))
      .train_epoch(*data, 1, 1);
  expect_same(ours.tensors(), theirs.tensors());
  const TinyRun before;
  EXPECT_FALSE(ours.tensors()[0].equal(before.tensors()[0]));
}

TEST(OptimizedTrainer, AValidationBeforeTheFirstEpochChangesNothing) {
  const auto data = loader_of(8), validation = loader_of(8, /*training=*/false);
  const TinyRun validated, plain;
  const auto train = [&](const TinyRun& run, bool validates) {
    OptimizedTrainer trainer(run.network.state(), run.forward(), PerformanceConfig(OptimizationLevel::custom));
    if (validates) {
      EXPECT_EQ(trainer.validate(*validation, 1).samples, 8);
    }
    at::manual_seed(2);
    trainer.train_epoch(*data, 1, 1);
  };
  train(validated, true);
  train(plain, false);
  expect_same(validated.tensors(), plain.tensors());
}

TEST(OptimizedTrainer, RefusesAnEpochThatIsNotThere) {
  const auto data = loader_of(8);
  const TinyRun run;
  OptimizedTrainer trainer(run.network.state(), run.forward());
  const auto refusal = [](const auto& call) { return error_of(ErrorCode::invalid_argument, call); };
  EXPECT_EQ(refusal([&] { trainer.train_epoch(*data, 0, 3); }), "facade: epoch: wanted one from 1 to 3, found 0");
  EXPECT_EQ(refusal([&] { trainer.train_epoch(*data, 4, 3); }), "facade: epoch: wanted one from 1 to 3, found 4");
  EXPECT_THAT(refusal([&] { trainer.train_epoch(*data, 1, 0); }), HasSubstr("num_epochs"));
  EXPECT_EQ(refusal([&] { trainer.validate(*data, 0); }), "facade: epoch: wanted a whole number above 0, found 0");
}

TEST(PerformanceOptimizer, TheExampleOfALoopHasTenEpochsByDefaultAndASummaryForJson) {
  const auto data = loader_of(8);
  const TinyRun run;
  Optimizer optimizer = create_optimized_optimizer(run.network.state(), {.model_config = {.learning_rate = 0.001}});
  PerformanceOptimizer performance_optimizer{PerformanceConfig({.enable_memory_profiling = false})};
  const TrainingResults results =
      performance_optimizer.optimize_training_loop(run.network.state(), *data, optimizer, run.forward());
  EXPECT_THAT(results.epochs, SizeIs(10));
  const json summary = json::parse(performance_optimizer.get_performance_summary());
  EXPECT_THAT(summary["training_loops"], SizeIs(1));
  EXPECT_THAT(summary["training_loops"][0]["epochs"], SizeIs(10));
  EXPECT_EQ(summary["config"]["optimization_level"], "advanced");
}

TEST(PerformanceOptimizer, TellsOfEverySettingOnceAlsoBeforeALoop) {
  const PerformanceOptimizer optimizer(OptimizationLevel::ultra);
  std::vector<std::string> keys;
  for (const Applied& row : optimizer.get_optimization_status()) {
    keys.push_back(row.key);
    EXPECT_EQ(row.applied == "none", !row.reason.empty()) << row.key;
  }
  const auto names = performance_setting_names();
  EXPECT_EQ(keys, std::vector<std::string>(names.begin(), names.end()));
}

TEST(PerformanceOptimizer, GivesTheLoaderTheWorkersThatSomebodySaid) {
  const TinyRun run;
  const auto workers_after = [&](const PerformanceSettings& settings) {
    const auto data = loader_of(8);
    Optimizer optimizer = create_optimized_optimizer(run.network.state(), {.model_config = {.learning_rate = 0.001}});
    PerformanceOptimizer performance{PerformanceConfig(settings)};
    performance.optimize_training_loop(run.network.state(), *data, optimizer, run.forward(), 1);
    return data->applied_num_workers().requested;
  };
  EXPECT_EQ(workers_after({.num_workers = 3}), "3");
  const auto untouched = loader_of(8);
  EXPECT_EQ(workers_after({}), untouched->applied_num_workers().requested);
}

TEST(OptimizeTrainingLoop, ByDefaultMakesAnUpdateABatch) {
  const auto data = loader_of(8);
  const TinyRun run;
  Optimizer optimizer = create_optimized_optimizer(run.network.state(), {.model_config = {.learning_rate = 0.001}});
  const TrainingResults results =
      optimize_training_loop(run.network.state(), *data, optimizer, run.forward(), /*num_epochs=*/2);
  ASSERT_THAT(results.epochs, SizeIs(2));
  EXPECT_EQ(results.epochs[1].optimizer_steps, 4);
}

TEST(ForwardBy, IsCrossEntropyOfTheOutputsWhereNoCriterionIsGiven) {
  at::manual_seed(4);
  const at::Tensor weight = at::randn({4, 3}), image = at::randn({5, 3}), labels = at::randint(4, {5}, at::kLong);
  const TensorBatch batch{{"image", image}, {"labels", labels}};
  const auto call = [&](const at::Tensor& inputs) { return at::linear(inputs, weight); };
  const Output output = forward_by(call)(batch);
  EXPECT_TRUE(output.loss.equal(at::cross_entropy_loss(at::linear(image, weight), labels)));
  EXPECT_TRUE(output.named.at("logits").equal(at::linear(image, weight)));
  const Output other =
      forward_by(call, [](const at::Tensor& outputs, const at::Tensor&) { return outputs.sum(); })(batch);
  EXPECT_TRUE(other.loss.equal(at::linear(image, weight).sum()));
}

TEST(TrainableModel, TheExampleOfAFitWithinAProfileHasAHistoryATraceAndStatistics) {
  const TemporaryFolder folder;
  const std::filesystem::path logdir = folder.path() / "logdir";
  const TinyRun run;
  const auto dataset = loader_of(8), validation = loader_of(4, /*training=*/false);
  TrainableModel model(run.network.state(), run.forward());
  std::map<std::string, std::vector<double>> history;
  {
    const Profile profile(logdir);
    history = model.fit(*dataset, /*epochs=*/10, validation.get());
  }
  for (const char* name : {"loss", "seconds", "samples_per_second", "skipped_updates", "val_loss"}) {
    EXPECT_THAT(history.at(name), SizeIs(10)) << name;
  }
  std::ifstream file(logdir / "pipeline_statistics.json");
  const json statistics = json::parse(file);
  EXPECT_EQ(statistics["time_split"]["steps"], 20);
  EXPECT_EQ(statistics["reason"], "");
  EXPECT_EQ(statistics["dropped_events"], 0);
  EXPECT_TRUE(std::filesystem::exists(logdir / "trace.json"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { model.fit(*dataset, 0); }), HasSubstr("epochs: wanted"));
}

TEST(FacadeProfile, OfAScopeThatThrowsAndHasNoStepSaysSo) {
  const TemporaryFolder folder;
  EXPECT_THROW(
      {
        const Profile profile(folder.path());
        throw std::runtime_error("mine");
      },
      std::runtime_error);
  std::ifstream file(folder.path() / "pipeline_statistics.json");
  const json statistics = json::parse(file);
  EXPECT_TRUE(statistics["time_split"].is_null());
  EXPECT_THAT(statistics["reason"].get<std::string>(), HasSubstr("0 whole steps"));
}

TEST(FacadeProfile, RefusesASecondRecordingAndStopsOnce) {
  const TemporaryFolder folder;
  Profile profile(folder.path());
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const Profile second(folder.path()); }), HasSubstr("trace"));
  profile.stop();
  std::filesystem::remove(folder.path() / "trace.json");
  profile.stop();
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "trace.json"));
}

}  // namespace
}  // namespace headrace::facade
