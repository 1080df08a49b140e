#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/optimized_optimizer.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::EndsWith;

ModelState model_of(const std::vector<std::string>& names) {
  ModelState model;
  for (const std::string& name : names) model.parameters.emplace_back(name, at::ones({1}).requires_grad_());
  return model;
}

TrainingConfig config_of(double learning_rate, std::string optimizer = "auto") {
  return {.model_config = {.learning_rate = learning_rate, .optimizer = std::move(optimizer)}};
}

double value_of(const ModelState& model, std::size_t parameter) {
  return model.parameters[parameter].second.item<double>();
}

// Each parameter's value after one update with the same gradient.
std::vector<double> values_after_a_step(const ModelState& model, const TrainingConfig& config, double gradient) {
  Optimizer optimizer = create_optimized_optimizer(model, config);
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) parameter.mutable_grad() = at::full({1}, gradient);
  }
  optimizer.step([](double lr) { return lr; });
  std::vector<double> values;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) values.push_back(value_of(model, i));
  return values;
}

TEST(OptimizedOptimizer, HasTheBackboneAtATenthOfTheLearningRateAndTheRest) {
  ModelState model = model_of({"head.bias", "backbone.0.weight", "net.stem.weight", "head.weight", "my_backbone.bias"});
  model.parameters.emplace_back("backbone.1.weight", at::ones({1}));
  model.parameters.emplace_back("neck.weight", at::ones({1}));
  const Optimizer optimizer = create_optimized_optimizer(model, config_of(0.01));
  ASSERT_EQ(optimizer.groups(), 2U);
  EXPECT_EQ(optimizer.lr_mult(0), 0.1);
  EXPECT_EQ(optimizer.lr_mult(1), 1);
  for (std::size_t group : {0, 1}) {
    EXPECT_EQ(optimizer.options(group).lr, 0.01);
    EXPECT_EQ(optimizer.options(group).weight_decay, 0.0005);
  }
  std::vector<std::string> names;
  for (const auto& [name, parameter] : optimizer.parameters()) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("backbone.0.weight", "net.stem.weight", "my_backbone.bias", "head.bias", "head.weight"));

  TrainingConfig without_decay = config_of(0.1, "sgd");
  without_decay.model_config.weight_decay = 0;
  const std::vector<double> values = values_after_a_step(model, without_decay, 1.0);
  const double rest = 1 - 0.1 * 1.937, backbone = 1 - 0.01 * 1.937;
  const std::vector<double> wanted{rest, backbone, backbone, rest, backbone, 1, 1};
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], wanted[i], 1e-6) << model.parameters[i].first;
}

TEST(OptimizedOptimizer, ScalesTheLearningRateWithTheSamplesOfAnUpdateWhereAsked) {
  const ModelState model = model_of({"backbone.weight", "head.weight"});
  TrainingConfig config = config_of(0.02);
  config.batch_size = 24;  // Two batches an update.
  EXPECT_EQ(create_optimized_optimizer(model, config).options(0).lr, 0.02);
  config.model_config.base_batch_size = 16;
  const Optimizer optimizer = create_optimized_optimizer(model, config);
  for (std::size_t group : {0, 1}) EXPECT_DOUBLE_EQ(optimizer.options(group).lr, 0.06);
  EXPECT_EQ(optimizer.lr_mult(0), 0.1);
  config.model_config.base_batch_size = 0;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { create_optimized_optimizer(model, config); }),
              EndsWith("base_batch_size: wanted a whole number of at least 1, found 0"));
  config.model_config.base_batch_size = 16;
  config.batch_size.reset();
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { create_optimized_optimizer(model, config); }),
              EndsWith("config.batch_size: wanted a whole number of at least 1, found none"));
}

TEST(OptimizedOptimizer, LeavesOutAGroupWithoutParameters) {
  const Optimizer backbone = create_optimized_optimizer(model_of({"backbone.weight"}), config_of(0.01));
  ASSERT_EQ(backbone.groups(), 1U);
  EXPECT_EQ(backbone.lr_mult(), 0.1);
  const Optimizer rest = create_optimized_optimizer(model_of({"head.weight"}), config_of(0.01));
  ASSERT_EQ(rest.groups(), 1U);
  EXPECT_EQ(rest.lr_mult(), 1);
  ModelState frozen;
  frozen.parameters.emplace_back("head.weight", at::ones({1}));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { create_optimized_optimizer(frozen, config_of(0.01)); }),
              EndsWith("parameters that require gradients, found none"));
}

TEST(OptimizedOptimizer, IsAdamWByDefaultAndHasTheSettingsOfItsName) {
  for (const char* name : {"auto", "Auto", "adamw", "AdamW", "ADAMW"}) {
    const Optimizer optimizer = create_optimized_optimizer(model_of({"weight"}), config_of(0.01, name));
    EXPECT_EQ(optimizer.options().name, OptimizerName::adamw) << name;
    EXPECT_THAT(optimizer.options().betas, ElementsAre(0.9, 0.999));
    EXPECT_EQ(optimizer.options().eps, 1e-8);
  }
  EXPECT_EQ(ModelConfig{}.optimizer, "auto");
  for (const char* name : {"sgd", "SGD"}) {
    const Optimizer optimizer = create_optimized_optimizer(model_of({"weight"}), config_of(0.01, name));
    EXPECT_EQ(optimizer.options().name, OptimizerName::sgd) << name;
    EXPECT_EQ(optimizer.options().momentum, 0.937);
    EXPECT_TRUE(optimizer.options().nesterov);
  }
}

TEST(OptimizedOptimizer, MakesTheStepOfTheFormula) {
  TrainingConfig config = config_of(0.1);
  config.model_config.weight_decay = 0.01;
  EXPECT_NEAR(values_after_a_step(model_of({"weight"}), config, 0.5)[0],
              1 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + 1e-8), 1e-6);
  config.model_config.optimizer = "sgd";
  EXPECT_NEAR(values_after_a_step(model_of({"weight"}), config, 0.5)[0], 1 - 0.1 * 1.937 * (0.5 + 0.01 * 1), 1e-6);
}

TEST(OptimizedOptimizer, RefusesAnotherNameWithTheListAndNamesWhatIsMissing) {
  const auto refusal = [](const TrainingConfig& config) {
    return error_of(ErrorCode::invalid_argument, [&] { create_optimized_optimizer(model_of({"weight"}), config); });
  };
  for (const std::string name : {"lion", "adam", "", "adamw "}) {
    EXPECT_EQ(refusal(config_of(0.01, name)),
              "facade: config.model_config.optimizer: wanted auto, adamw or sgd, found '" + name + "'");
  }
  EXPECT_EQ(refusal({}), "facade: config.model_config.learning_rate: wanted a number of at least 0, found none");
  EXPECT_EQ(refusal(config_of(-1)),
            "facade: config.model_config.learning_rate: wanted a number of at least 0, found -1");
  TrainingConfig no_number = config_of(0.01);
  no_number.model_config.weight_decay = std::nan("");
  EXPECT_EQ(refusal(no_number), "facade: config.model_config.weight_decay: wanted a number of at least 0, found nan");
}

}  // namespace
}  // namespace headrace::facade
