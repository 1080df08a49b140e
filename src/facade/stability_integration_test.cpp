// What a performance configuration and a debug configuration add to steps of numerical stability.
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/numerical_stability.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The four of the examples.
StabilityConfigs example() {
  return {.clipping_config = ClippingConfig{},
          .nan_config = NanConfig{},
          .debug_config = DebugConfig{},
          .performance_config = PerformanceOptimizationConfig{.enable_performance_optimization = true,
                                                              .optimization_level = OptimizationLevel::advanced,
                                                              .integrate_with_stability = true,
                                                              .enable_mixed_precision = true,
                                                              .enable_model_compilation = true,
                                                              .enable_memory_optimization = true}};
}

Applied row_of(const StabilitySummary& summary, const std::string& key) {
  for (const Applied& row : summary.optimizations) {
    if (row.key == key) return row;
  }
  ADD_FAILURE() << "no row " << key;
  return {};
}

TEST(StabilityIntegration, TheExampleSetsAModelUpStepsItAndTellsOfIt) {  // EX-002-06, EX-002-12.
  NumericalStabilityManager manager(example());
  EXPECT_THAT(row_of(manager.get_performance_summary(), "enable_memory_optimization").reason, HasSubstr("found none"));
  Regression regression;
  const at::Tensor images = at::ones({2, 3, 4, 5}).requires_grad_();  // As the weights of a convolution lie.
  regression.model.parameters.emplace_back("images", images);
  const std::vector<at::Tensor> before = regression.copies();
  const ModelState optimized = manager.optimize_model(regression.model);
  EXPECT_TRUE(images.is_contiguous(at::MemoryFormat::ChannelsLast));
  expect_same(regression.tensors(), before);
  Optimizer optimizer = regression.descent_of_the_head();
  std::vector<double> losses;
  for (const TensorBatch& batch : batches(20)) {
    const StabilityResult result = manager.step(optimized, regression.loss(batch), optimizer);
    losses.push_back(result.loss);
    EXPECT_GT(result.performance_metrics.value().memory_usage_percent.value(), 0);
  }
  EXPECT_LT(losses.back(), losses.front());
  const StabilitySummary summary = manager.get_performance_summary();
  EXPECT_EQ(summary.steps, 20);
  EXPECT_GT(summary.performance_metrics.value().memory_usage_percent.value(), 0);
  EXPECT_EQ(row_of(summary, "integrate_with_stability").applied, "true");
  EXPECT_EQ(row_of(summary, "enable_memory_optimization").applied, "true");
  EXPECT_EQ(row_of(summary, "optimization_level").applied, "advanced");
  EXPECT_THAT(row_of(summary, "enable_model_compilation").reason, HasSubstr("torch.compile"));
}

TEST(StabilityIntegration, TheExampleOfAWrapperHasAStepThatIsItsManagers) {  // EX-002-07.
  TrainingWrapper wrapper = create_training_wrapper(example());
  NumericalStabilityManager manager(example());
  Regression ours, theirs;
  Optimizer our_optimizer = ours.descent(), their_optimizer = theirs.descent();
  for (const TensorBatch& batch : batches(10)) {
    const StabilityResult found = wrapper.step(ours.model, ours.forward(), batch, our_optimizer);
    const StabilityResult wanted = manager.step(theirs.model, theirs.loss(batch), their_optimizer);
    EXPECT_EQ(found.loss, wanted.loss);
    EXPECT_EQ(found.gradient_norm, wanted.gradient_norm);
    EXPECT_TRUE(found.performance_metrics.has_value());
  }
  expect_same(ours.tensors(), theirs.tensors());
  EXPECT_EQ(wrapper.manager.get_performance_summary().steps, 10);
}

TEST(StabilityIntegration, TheExampleOfAStepHasMetricsThatMoveWithMemory) {  // EX-002-08.
  Regression regression;
  Optimizer optimizer = regression.descent();
  NumericalStabilityManager manager(example());
  const TensorBatch batch = batches(1)[0];
  const auto percent = [&] {
    const StabilityResult result = manager.step(regression.model, regression.loss(batch), optimizer);
    return result.performance_metrics.value().memory_usage_percent.value();
  };
  const double before = percent();
  const at::Tensor held = at::ones({256 << 20}, at::kByte);
  const double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  const double share = 100 * static_cast<double>(held.nbytes()) / bytes;
  EXPECT_NEAR(percent() - before, share, 0.2 * share);
}

TEST(StabilityIntegration, WhatIsNotIntegratedHasNoMetricsAndSetsNoModelUp) {
  for (const bool is_on : {true, false}) {
    StabilityConfigs configs = example();
    configs.performance_config->enable_performance_optimization = is_on;
    configs.performance_config->integrate_with_stability = false;
    configs.performance_config->enable_memory_optimization = false;
    NumericalStabilityManager manager(configs);
    Regression regression;
    const at::Tensor images = at::ones({2, 3, 4, 5}).requires_grad_();
    regression.model.parameters.emplace_back("images", images);
    manager.optimize_model(regression.model);
    EXPECT_TRUE(images.is_contiguous());
    Optimizer optimizer = regression.descent_of_the_head();
    const StabilityResult result = manager.step(regression.model, regression.loss(batches(1)[0]), optimizer);
    EXPECT_FALSE(result.performance_metrics.has_value());
    const StabilitySummary summary = manager.get_performance_summary();
    EXPECT_FALSE(summary.performance_metrics.has_value());
    EXPECT_EQ(row_of(summary, "integrate_with_stability").applied, "false");
    EXPECT_EQ(row_of(summary, "enable_memory_optimization").applied, "false");
  }
  EXPECT_THAT(NumericalStabilityManager().get_performance_summary().optimizations, IsEmpty());
}

TEST(StabilityIntegration, RefusesConfigurationsThatCannotBe) {
  const auto refusal = [](const StabilityConfigs& configs) {
    return error_of(ErrorCode::invalid_argument, [&] { NumericalStabilityManager manager(configs); });
  };
  EXPECT_EQ(refusal({.debug_config = DebugConfig{.suspicious_factor = 1}}),
            "facade: DebugConfig.suspicious_factor: wanted a number above 1, and finite, found 1");
  EXPECT_THAT(
      refusal({.performance_config = PerformanceOptimizationConfig{.optimization_level = OptimizationLevel::custom}}),
      HasSubstr("wanted basic | advanced | ultra, found custom"));
}

// A loss of one weight, 1, times a factor, which is the gradient, too; steps move it by nothing that float32 has.
struct Scaled {
  at::Tensor weight = at::ones({1}).requires_grad_();
  ModelState model{{{"weight", weight}}, {}, [](bool) {}};
  Optimizer optimizer = made();

  StabilityResult step(NumericalStabilityManager& manager, double factor) {
    return manager.step(
        model, [&] { return weight.mul(factor).sum(); }, optimizer);
  }

 private:
  Optimizer made() const {
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.lr = 1e-12;
    options.momentum = 0;
    options.weight_decay = 0;
    return Optimizer(model.parameters, options);
  }
};

TEST(StabilityDebug, AStepThatLooksWrongIsToldWithWhatItIsComparedWith) {
  std::vector<std::string> told;
  NumericalStabilityManager manager(
      {.nan_config = NanConfig{.policy = GuardPolicy::skip},
       .debug_config = DebugConfig{.log_suspicious_steps = true,
                                   .log = [&told](const std::string& sentence) { told.push_back(sentence); }}});
  Scaled scaled;
  scaled.step(manager, 30);  // There is nothing to compare it with.
  for (int i = 0; i < 9; ++i) scaled.step(manager, 1);
  EXPECT_THAT(told, IsEmpty());
  scaled.step(manager, 10);  // As much is no more.
  scaled.step(manager, 30);
  scaled.step(manager, kNan);
  EXPECT_THAT(told, ElementsAre("step 12: loss is 30, 30.0 times the median of the 11 steps before; gradient_norm is "
                                "30, 30.0 times the median of the 11 steps before",
                                "step 13: loss is nan in epoch 0, batch 12; loss is nan; its update was left out"));
}

TEST(StabilityDebug, StatisticsOfActivationsAreThoseOfTheForwardsOwnOperators) {
  const at::Tensor weight = at::ones({4}).requires_grad_();
  const ModelState model{{{"weight", weight}}, {}, [](bool) {}};
  OptimizerOptions options;
  options.name = OptimizerName::sgd;
  Optimizer optimizer(model.parameters, options);
  NumericalStabilityManager manager({.debug_config = DebugConfig{.activation_statistics = true}});
  const at::Tensor inputs = at::tensor({0.0F, 4.0F, -1.0F, 9.0F});
  const auto forward = [&] { return weight.mul(inputs).sqrt().nan_to_num(0.0).sum(); };
  const StabilityResult result = manager.step(model, forward, optimizer);
  ASSERT_EQ(result.activation_statistics.size(), 4U);
  const ActivationStatistics& products = result.activation_statistics[0];
  EXPECT_EQ(products.operation, "aten::mul");
  EXPECT_EQ(products.mean, 3.0);
  EXPECT_NEAR(products.std.value(), std::sqrt(15.5), 1e-6);
  EXPECT_EQ(products.abs_max, 9.0);
  EXPECT_EQ(products.zeros, 0.25);
  EXPECT_EQ(products.not_finite, 0);
  const ActivationStatistics& roots = result.activation_statistics[1];
  EXPECT_EQ(roots.operation, "aten::sqrt");
  EXPECT_EQ(roots.not_finite, 1);
  EXPECT_NEAR(roots.mean.value(), 5.0 / 3, 1e-6);
  EXPECT_EQ(result.activation_statistics[3].operation, "aten::sum");
  EXPECT_THAT(manager.step(model, forward(), optimizer).activation_statistics, IsEmpty());  // Its forward was before.
}

thread_local std::int64_t operators_of_this_thread = 0;

// That a step runs, its forward and backward included.
std::int64_t operators_of_a_step(const std::optional<DebugConfig>& debug) {
  NumericalStabilityManager manager(
      {.clipping_config = ClippingConfig{}, .nan_config = NanConfig{}, .debug_config = debug});
  Regression regression;
  Optimizer optimizer = regression.descent();
  const TensorBatch batch = batches(1)[0];
  const auto count = [](const at::RecordFunction& /*operation*/) -> std::unique_ptr<at::ObserverContext> {
    ++operators_of_this_thread;
    return nullptr;
  };
  operators_of_this_thread = 0;
  const at::CallbackHandle handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
  const StabilityResult result = manager.step(
      regression.model, [&] { return regression.loss(batch); }, optimizer);
  at::removeCallback(handle);
  EXPECT_THAT(result.activation_statistics, IsEmpty());
  EXPECT_EQ(result.gradient_norms.empty(), !debug || !debug->gradient_statistics);
  return operators_of_this_thread;
}

TEST(StabilityDebug, WhatIsOffRunsNoOperator) {  // PREC-13: off costs less than 1 %.
  operators_of_a_step(std::nullopt);             // What is made once in a process is made here.
  const std::int64_t plain = operators_of_a_step(std::nullopt);
  EXPECT_GT(plain, 0);
  EXPECT_EQ(operators_of_a_step(DebugConfig{}), plain);
  EXPECT_GT(operators_of_a_step(DebugConfig{.gradient_statistics = true}), plain);
}

}  // namespace
}  // namespace headrace::facade
