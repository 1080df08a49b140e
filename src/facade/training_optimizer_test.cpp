#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/training_optimizer.h>
#include <headrace/trace.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"
#include "torch/train/memory_layout.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;

std::unique_ptr<Loader> loader_of(std::int64_t samples, std::int64_t batch_size = 4) {
  return std::make_unique<Loader>(std::make_shared<tiny::Images>(samples), tiny::batches_of(batch_size), /*seed=*/1,
                                  /*training=*/true);
}

// A network, its optimizer, and what a loop takes of them.
struct TinyRun {
  tiny::Cnn network = made();
  Optimizer optimizer = descent(network);

  Forward forward() const {
    return [this](const TensorBatch& batch) { return network(batch); };
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : network.state().parameters) all.push_back(parameter);
    for (const auto& [name, buffer] : network.state().buffers) all.push_back(buffer);
    return all;
  }

 private:
  static tiny::Cnn made() {
    at::manual_seed(1);
    return tiny::Cnn();
  }
  static Optimizer descent(const tiny::Cnn& network) {
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.set_implementation(OptimizerImplementation::for_loop);  // The operators of torch::optim::SGD.
    options.lr = 0.05;
    options.momentum = 0.9;
    options.weight_decay = 0;
    return Optimizer(network.state().parameters, options);
  }
};

// Written by hand with LibTorch's own classes; returns the mean over the samples of each epoch.
std::vector<double> train_by_hand(const TinyRun& run, Loader& loader, std::int64_t epochs) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : run.network.state().parameters) parameters.push_back(parameter);
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  at::manual_seed(2);
  std::vector<double> means;
  for (std::int64_t i = 0; i < epochs; ++i) {
    double sum = 0;
    std::int64_t samples = 0;
    Epoch epoch = loader.epoch(i);
    while (const std::optional<Batch> host = epoch.next()) {
      const TensorBatch batch = tensors_of(*host, headrace::MemoryFormat::contiguous);
      sgd.zero_grad();
      const at::Tensor loss = run.network(batch).loss;
      loss.backward();
      sgd.step();
      sum += loss.item<double>() * static_cast<double>(batch.size());
      samples += batch.size();
    }
    means.push_back(sum / static_cast<double>(samples));
  }
  return means;
}

const PerformanceConfig kPlain{OptimizationLevel::custom};

TEST(OptimizedTrainingLoop, TheExampleHasTheWeightsOfTheLoopWrittenByHandAndItsMeanLoss) {
  const auto data = loader_of(14);
  TinyRun theirs, ours;
  const std::vector<double> means = train_by_hand(theirs, *data, 1);
  ours.network.state().set_training(false);
  at::manual_seed(2);
  const TrainingLoss result = optimized_training_loop(ours.network.state(), *data, ours.optimizer, ours.forward(),
                                                      at::Device(at::kCPU), {.mixed_precision = true});
  EXPECT_NEAR(result.train_loss, means[0], 1e-5);
  expect_same(ours.tensors(), theirs.tensors(), 1e-5);
  EXPECT_TRUE(ours.network.training());
  ASSERT_EQ(ours.optimizer.groups(), 1U);  // The caller's again.
  EXPECT_EQ(ours.optimizer.parameters().size(), ours.network.state().parameters.size());
}

TEST(OptimizedTrainingLoop, RefusesAnotherDeviceAndTwoNamesThatDifferAndGivesTheOptimizerBack) {
  TinyRun run;
  const auto data = loader_of(8);
  const auto loop = [&](Loader& loader, at::Device device, const TrainingConfig& config = {}) {
    optimized_training_loop(run.network.state(), loader, run.optimizer, run.forward(), device, config);
  };
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { loop(*data, at::Device(at::kCUDA, 0)); }),
            "facade: device: wanted the model's, which is cpu, found cuda:0");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { loop(*data, at::Device(at::kCPU), {.mixed_precision = true, .enable_amp = false}); }),
              HasSubstr("names of the same setting"));
  ModelState empty;
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument,
               [&] { optimized_training_loop(empty, *data, run.optimizer, run.forward(), at::Device(at::kCPU)); }),
      "facade: model: wanted one with parameters, found none");
  const Forward bad = [](const TensorBatch&) -> Output { throw std::runtime_error("mine"); };
  EXPECT_THROW(optimized_training_loop(run.network.state(), *data, run.optimizer, bad, at::Device(at::kCPU)),
               std::runtime_error);
  EXPECT_EQ(run.optimizer.parameters().size(), run.network.state().parameters.size());
}

TEST(TrainingOptimizer, WithoutASettingTrainsAsTheLoopWrittenByHandAndTellsOfEachEpoch) {
  const auto data = loader_of(12);
  TinyRun theirs, ours;
  const std::vector<double> means = train_by_hand(theirs, *data, 3);
  at::manual_seed(2);
  const TrainingResults results =
      TrainingOptimizer(kPlain).train(ours.network.state(), *data, ours.optimizer, ours.forward(), 3);
  expect_same(ours.tensors(), theirs.tensors(), 1e-5);
  ASSERT_EQ(results.epochs.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results.epochs[i].epoch, static_cast<std::int64_t>(i) + 1);
    EXPECT_NEAR(results.epochs[i].loss, means[i], 1e-5);
    EXPECT_EQ(results.epochs[i].samples, 12);
    EXPECT_EQ(results.epochs[i].optimizer_steps, 3 * (static_cast<std::int64_t>(i) + 1));
    EXPECT_FALSE(results.epochs[i].profile);
  }
  const auto json = nlohmann::json::parse(results.to_json());
  EXPECT_EQ(json["epochs"].size(), 3U);
  EXPECT_EQ(json["skipped_updates"], 0);
}

TEST(TrainingOptimizer, TheOptimizersStateGoesOnFromOneLoopToTheNext) {
  const auto data = loader_of(8);
  TinyRun twice, by_hand;
  TrainingOptimizer training(kPlain);
  at::manual_seed(2);
  training.train(twice.network.state(), *data, twice.optimizer, twice.forward(), 1);
  training.train(twice.network.state(), *data, twice.optimizer, twice.forward(), 1);
  at::manual_seed(2);
  TrainingLoop loop =
      TrainingOptimizer(kPlain).begin(by_hand.network.state(), by_hand.optimizer, by_hand.forward(), *data);
  loop.train_epoch(*data);
  loop.trainer().progress().epoch = 0;  // The same samples once more, as each of the two loops has them.
  loop.train_epoch(*data);
  expect_same(twice.tensors(), by_hand.tensors());
}

std::int64_t updates_of(const PerformanceSettings& settings, std::int64_t samples, std::int64_t batch_size) {
  const auto data = loader_of(samples, batch_size);
  TinyRun run;
  const PerformanceConfig config(settings);
  return TrainingOptimizer(config)
      .train(run.network.state(), *data, run.optimizer, run.forward(), 1)
      .epochs[0]
      .optimizer_steps;
}

TEST(TrainingOptimizer, AnUpdateHasAsManyBatchesAsTheConfigurationSays) {
  EXPECT_EQ(updates_of({.gradient_accumulation = false}, 40, 4), 10);
  EXPECT_EQ(updates_of({}, 40, 4), 3);  // Four batches each, and two at the end.
  EXPECT_EQ(updates_of({.gradient_accumulation_steps = 5}, 40, 4), 2);
  EXPECT_EQ(updates_of({.gradient_accumulation_steps = AUTOTUNE}, 96, 16), 2);  // Of 64 samples, and 32.
}

const Applied& row(const std::vector<Applied>& rows, const std::string& key) {
  for (const Applied& each : rows) {
    if (each.key == key) return each;
  }
  throw std::out_of_range("no row " + key);
}

TEST(TrainingOptimizer, ProfilesAreMadeWhereTheyAreAskedForAndElseTheReportSaysWhyNot) {
  const auto data = loader_of(8);
  TinyRun run;
  TrainingLoop loop = TrainingOptimizer(PerformanceConfig({.enable_memory_profiling = true}))
                          .begin(run.network.state(), run.optimizer, run.forward(), *data);
  EXPECT_EQ(row(loop.report(), "enable_profiling").applied, "none");
  const EpochResult epoch = loop.train_epoch(*data);
  ASSERT_TRUE(epoch.profile);
  EXPECT_EQ(epoch.profile->steps, 2);
  EXPECT_TRUE(epoch.memory_profile);
  EXPECT_EQ(row(loop.report(), "enable_profiling").applied, "true");
  EXPECT_EQ(row(loop.report(), "enable_memory_profiling").applied, "true");
  EXPECT_TRUE(nlohmann::json::parse(loop.results().to_json())["epochs"][0].contains("profile"));
  const Trace mine;
  EXPECT_FALSE(loop.train_epoch(*data).profile);
  EXPECT_EQ(row(loop.report(), "enable_profiling").applied, "none");
  EXPECT_NE(row(loop.report(), "enable_profiling").reason, "");
}

TEST(TrainingOptimizer, SaysOfWhatWantsCudaWhyItIsNotAppliedOnACpu) {
  const auto data = loader_of(8);
  TinyRun run;
  TrainingOptimizer training{PerformanceConfig(OptimizationLevel::advanced)};
  EXPECT_THAT(row(training.report(), "enable_amp").reason, HasSubstr("which was not run"));
  training.train(run.network.state(), *data, run.optimizer, run.forward(), 1);
  for (const char* key : {"enable_amp", "enable_memory_optimization", "memory_threshold"}) {
    EXPECT_EQ(row(training.report(), key).applied, "none") << key;
    EXPECT_THAT(row(training.report(), key).reason, HasSubstr("found it on cpu")) << key;
  }
  EXPECT_EQ(row(training.report(), "gradient_accumulation").applied, "true");
  EXPECT_EQ(row(training.report(), "gradient_accumulation_steps").applied, "1");
}

TEST(TrainingOptimizer, RefusesLessThanAnEpochAndLeavesDeterminismAsItIs) {
  const auto data = loader_of(8);
  TinyRun run;
  TrainingOptimizer training(kPlain);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument,
                     [&] { training.train(run.network.state(), *data, run.optimizer, run.forward(), 0); }),
            "facade: num_epochs: wanted a whole number above 0, found 0");
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  training.train(run.network.state(), *data, run.optimizer, run.forward(), 1);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

}  // namespace
}  // namespace headrace::facade
