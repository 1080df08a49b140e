#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/numerical_stability.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr GuardPolicy kPolicies[] = {GuardPolicy::raise, GuardPolicy::skip, GuardPolicy::replace, GuardPolicy::lower_lr,
                                     GuardPolicy::rollback};

StabilityConfigs guarded(GuardPolicy policy) {
  return {.nan_config = NanConfig{.policy = policy}};
}

TEST(StabilityConfigs, WithoutArgumentsHaveTheDefaultsOfTheirNames) {
  const ClippingConfig clipping;
  EXPECT_EQ(clipping.mode, ClippingMode::norm);
  EXPECT_EQ(clipping.max_grad_norm, 1.0);
  EXPECT_EQ(clipping.clip_grad_value, 1.0);
  EXPECT_EQ(clipping.clip_factor, 0.01);
  const NanConfig nan;
  EXPECT_EQ(nan.policy, GuardPolicy::raise);
  EXPECT_EQ(nan.max_in_a_row, 10);
  EXPECT_EQ(nan.lr_factor, 0.5);
  EXPECT_EQ(nan.keep_every, 1);
  const DebugConfig debug;
  EXPECT_FALSE(debug.detect_anomaly);
  EXPECT_FALSE(debug.gradient_statistics);
  EXPECT_FALSE(debug.activation_statistics);
  EXPECT_FALSE(debug.log_suspicious_steps);
  EXPECT_EQ(debug.suspicious_factor, 10.0);
}

TEST(StabilityConfigs, RefuseAValueThatCannotBeByItsName) {
  const auto refusal = [](const StabilityConfigs& configs) {
    return error_of(ErrorCode::invalid_argument, [&] { NumericalStabilityManager manager(configs); });
  };
  EXPECT_EQ(refusal({.clipping_config = ClippingConfig{.max_grad_norm = 0}}),
            "facade: ClippingConfig.max_grad_norm: wanted a number above 0, and finite, found 0");
  EXPECT_THAT(refusal({.clipping_config = ClippingConfig{.clip_grad_value = kNan}}),
              HasSubstr("ClippingConfig.clip_grad_value"));
  EXPECT_THAT(refusal({.clipping_config = ClippingConfig{.clip_factor = -1}}), HasSubstr("ClippingConfig.clip_factor"));
  EXPECT_EQ(refusal({.nan_config = NanConfig{.max_in_a_row = 0}}),
            "facade: NanConfig.max_in_a_row: wanted a whole number above 0, found 0");
  EXPECT_THAT(refusal({.nan_config = NanConfig{.keep_every = -2}}), HasSubstr("NanConfig.keep_every"));
  EXPECT_EQ(refusal({.nan_config = NanConfig{.lr_factor = 1}}),
            "facade: NanConfig.lr_factor: wanted a number above 0 and below 1, found 1");
}

// Parameters a (30, 40) and b (0), whose gradients are (3, 4) and (12): norms of 5 and 12, together 13.
struct Known {
  at::Tensor a = at::tensor({30.0F, 40.0F}).requires_grad_(), b = at::zeros({1}).requires_grad_();
  ModelState model{{{"a", a}, {"b", b}}, {}, [](bool) {}};

  StabilityResult step(NumericalStabilityManager& manager) {
    OptimizerOptions options;
    options.name = OptimizerName::sgd;
    options.lr = 1;
    options.momentum = 0;
    options.weight_decay = 0;
    Optimizer optimizer(model.parameters, options);
    const at::Tensor loss = a.mul(at::tensor({3.0F, 4.0F})).sum().add(b.mul(12).sum());
    return manager.step(model, loss, optimizer);
  }
};

TEST(NumericalStability, ClipsToTheValuesOfEachMode) {
  struct Case {
    ClippingConfig config;
    double a0, a1, b, norm;  // The gradients, clipped.
  };
  const std::vector<Case> cases{
      {{.mode = ClippingMode::norm}, 3.0 / 13, 4.0 / 13, 12.0 / 13, 1},
      {{.mode = ClippingMode::value, .clip_grad_value = 3.5}, 3, 3.5, 3.5, std::sqrt(9 + 2 * 3.5 * 3.5)},
      {{.mode = ClippingMode::layer, .max_grad_norm = 2}, 1.2, 1.6, 2, std::sqrt(8)},
      {{.mode = ClippingMode::adaptive}, 0.3, 0.4, 1e-5, 0.5},
  };
  for (const Case& each : cases) {
    Known known;
    NumericalStabilityManager manager(StabilityConfigs{.clipping_config = each.config});
    const StabilityResult result = known.step(manager);
    EXPECT_NEAR(30 - known.a[0].item<double>(), each.a0, 1e-5);
    EXPECT_NEAR(40 - known.a[1].item<double>(), each.a1, 1e-5);
    EXPECT_NEAR(-known.b.item<double>(), each.b, 1e-6 * each.b + 1e-11);
    EXPECT_NEAR(result.gradient_norm.value(), 13, 1e-6);
    EXPECT_NEAR(result.gradient_norm_clipped.value(), each.norm, 1e-5);
    EXPECT_TRUE(result.clipped);
    EXPECT_EQ(manager.get_performance_summary().clip_count, 1);
  }
}

TEST(NumericalStability, LeavesTheBitsOfGradientsBelowTheLimit) {
  for (const ClippingMode mode : {ClippingMode::norm, ClippingMode::value, ClippingMode::layer}) {
    Known known;
    NumericalStabilityManager manager(
        StabilityConfigs{.clipping_config = ClippingConfig{mode, /*max_grad_norm=*/14, /*clip_grad_value=*/13}});
    const StabilityResult result = known.step(manager);
    EXPECT_FALSE(result.clipped);
    EXPECT_EQ(result.clip_count, 0);
    EXPECT_TRUE(known.a.equal(at::tensor({27.0F, 36.0F})));
    EXPECT_EQ(known.b.item<double>(), -12);
  }
}

TEST(NumericalStability, TellsNormsOfGradientsByNameWhereAsked) {
  Known known;
  NumericalStabilityManager asked(StabilityConfigs{.debug_config = DebugConfig{.gradient_statistics = true}});
  EXPECT_THAT(known.step(asked).gradient_norms, ElementsAre(Pair("a", 5.0), Pair("b", 12.0)));
  NumericalStabilityManager plain;
  EXPECT_TRUE(known.step(plain).gradient_norms.empty());
}

TEST(NumericalStability, AHundredStepsOfAWrapperAreTheLoopsOfLibTorchAndOfTheManager) {
  const StabilityConfigs configs{.clipping_config = ClippingConfig{.max_grad_norm = 0.5},
                                 .nan_config = NanConfig{},
                                 .debug_config = DebugConfig{}};
  Regression by_hand, by_manager, ours;
  torch::optim::SGD sgd(by_hand.tensors(), torch::optim::SGDOptions(0.05));
  NumericalStabilityManager manager(configs);
  TrainingWrapper wrapper = create_training_wrapper(configs);
  Optimizer of_manager = by_manager.descent(), optimizer = ours.descent();
  std::int64_t clipped = 0;
  for (const TensorBatch& batch : batches(100)) {
    sgd.zero_grad();
    by_hand.loss(batch).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(by_hand.tensors(), 0.5);
    if (norm > 0.5) ++clipped;
    sgd.step();
    const StabilityResult wanted = manager.step(by_manager.model, by_manager.loss(batch), of_manager);
    const StabilityResult found = wrapper.step(ours.model, ours.forward(), batch, optimizer);
    EXPECT_EQ(found.loss, wanted.loss);
    EXPECT_FALSE(found.skipped);
    EXPECT_NEAR(found.gradient_norm.value(), norm, 1e-3 * norm);
    EXPECT_LE(found.gradient_norm_clipped.value(), 0.5 + 1e-6);
  }
  expect_same(ours.tensors(), by_manager.tensors());
  expect_same(ours.tensors(), by_hand.tensors(), 1e-4);
  const StabilitySummary summary = wrapper.manager.get_performance_summary();
  EXPECT_EQ(summary.steps, 100);
  EXPECT_EQ(summary.skipped_steps, 0);
  EXPECT_GT(summary.clip_count, 0);
  EXPECT_EQ(summary.clip_count, manager.get_performance_summary().clip_count);
  EXPECT_NEAR(static_cast<double>(summary.clip_count), static_cast<double>(clipped), 1);  // One may stand at the limit.
}

TEST(NumericalStability, WithoutConfigurationsIsThePlainStepAlsoWhereBackwardWasRunBefore) {
  for (const bool was_run : {false, true}) {
    Regression theirs, ours;
    torch::optim::SGD sgd(theirs.tensors(), torch::optim::SGDOptions(0.05));
    Optimizer optimizer = ours.descent();
    NumericalStabilityManager manager;
    for (const TensorBatch& batch : batches(5)) {
      sgd.zero_grad();
      theirs.loss(batch).backward();
      sgd.step();
      const at::Tensor loss = ours.loss(batch);
      if (was_run) loss.backward();
      EXPECT_EQ(manager.step(ours.model, loss, optimizer).loss, loss.item<double>());
      for (const at::Tensor& parameter : ours.tensors()) EXPECT_FALSE(parameter.grad().defined());
    }
    expect_same(ours.tensors(), theirs.tensors());
  }
}

TEST(NumericalStability, NamesABadGradientOfOneStepAndDoesWhatThePolicySays) {
  for (const GuardPolicy policy : kPolicies) {
    SCOPED_TRACE(std::string(choice_name(policy)));
    Regression regression;
    double factor = 1;
    regression.tensors()[2].register_hook([&factor](const at::Tensor& gradient) { return gradient.mul(factor); });
    Optimizer optimizer = regression.descent();
    NumericalStabilityManager manager(guarded(policy));
    StabilityResult result;
    for (const TensorBatch& batch : batches(8)) {
      const bool is_bad = manager.get_performance_summary().steps == 4;
      factor = is_bad ? kNan : 1;
      const std::vector<at::Tensor> before = regression.copies();
      if (is_bad && policy == GuardPolicy::raise) {
        EXPECT_EQ(
            error_of(ErrorCode::numerics, [&] { manager.step(regression.model, regression.loss(batch), optimizer); }),
            "train: gradient of 2.weight is nan in epoch 0, batch 4");
        expect_same(regression.tensors(), before);
        continue;
      }
      result = manager.step(regression.model, regression.loss(batch), optimizer);
      EXPECT_EQ(result.nan_detected.has_value(), is_bad);
      if (!is_bad) continue;
      EXPECT_EQ(result.nan_detected->tensor, "2.weight");
      EXPECT_EQ(result.nan_detected->module, "2");
      EXPECT_EQ(result.skipped, policy != GuardPolicy::replace);
      if (policy == GuardPolicy::replace) {
        EXPECT_TRUE(regression.tensors()[2].equal(before[2]));
        EXPECT_FALSE(regression.tensors()[0].equal(before[0]));
      } else {
        expect_same(regression.tensors(), before);
      }
    }
    EXPECT_EQ(optimizer.options().lr, policy == GuardPolicy::lower_lr ? 0.025 : 0.05);
    EXPECT_EQ(result.nan_count, 1);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_FALSE(result.skipped);
  }
}

TEST(NumericalStability, LeavesTheUpdateOfALossThatIsNoNumberOutUnderEveryPolicy) {
  for (const GuardPolicy policy : kPolicies) {
    SCOPED_TRACE(std::string(choice_name(policy)));
    Regression regression;
    Optimizer optimizer = regression.descent();
    NumericalStabilityManager manager(guarded(policy));
    const std::vector<TensorBatch> data = batches(2);
    const std::vector<at::Tensor> before = regression.copies();
    const at::Tensor loss = regression.loss(times(data[0], kNan));
    if (policy == GuardPolicy::raise) {
      EXPECT_EQ(error_of(ErrorCode::numerics, [&] { manager.step(regression.model, loss, optimizer); }),
                "train: loss is nan in epoch 0, batch 0");
    } else {
      const StabilityResult result = manager.step(regression.model, loss, optimizer);
      EXPECT_TRUE(result.skipped);
      EXPECT_FALSE(result.gradient_norm.has_value());
      EXPECT_EQ(manager.get_performance_summary().skipped_steps, 1);
    }
    expect_same(regression.tensors(), before);
    EXPECT_FALSE(manager.step(regression.model, regression.loss(data[1]), optimizer).skipped);
  }
}

TEST(NumericalStability, MendsAWeightThatAnUpdateMadeBadOrEndsTraining) {
  for (const GuardPolicy policy : kPolicies) {
    SCOPED_TRACE(std::string(choice_name(policy)));
    Regression regression;
    Optimizer optimizer = regression.descent();
    NumericalStabilityManager manager(guarded(policy));
    const std::vector<TensorBatch> data = batches(2);
    manager.step(regression.model, regression.loss(data[0]), optimizer);
    const std::vector<at::Tensor> before = regression.copies();
    OptimizerOptions options = optimizer.options();
    options.lr = 3e38;  // Beyond float32 times a gradient of 2.
    optimizer.set_options(options);
    const auto step = [&] { return manager.step(regression.model, regression.loss(times(data[1], 100)), optimizer); };
    if (policy != GuardPolicy::replace && policy != GuardPolicy::rollback) {
      EXPECT_THAT(error_of(ErrorCode::numerics, step), HasSubstr("in epoch 0, batch 1"));
      continue;
    }
    const StabilityResult result = step();
    ASSERT_TRUE(result.nan_detected.has_value());
    EXPECT_EQ(result.nan_detected->kind, FaultKind::weight);
    EXPECT_EQ(result.skipped, policy == GuardPolicy::rollback);
    if (policy == GuardPolicy::rollback) {
      expect_same(regression.tensors(), before);
      EXPECT_EQ(optimizer.options().lr, 3e38);
    } else {
      for (const at::Tensor& parameter : regression.tensors()) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    }
  }
}

TEST(NumericalStability, RollsBackToWeightsBuffersAndMomentumOfTheLastGoodState) {
  Regression regression;
  const at::Tensor buffer = at::zeros({2});
  regression.model.buffers.emplace_back("running", buffer);
  Optimizer optimizer = regression.descent(0.05, /*momentum=*/0.9);
  NumericalStabilityManager manager(
      StabilityConfigs{.nan_config = NanConfig{.policy = GuardPolicy::rollback, .keep_every = 2}});
  std::vector<at::Tensor> kept, kept_momentum;
  const std::vector<TensorBatch> data = batches(5);
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (i == 2) {  // After two good steps.
      kept = regression.copies();
      for (const auto& [name, tensor] : optimizer.state()) kept_momentum.push_back(tensor.clone());
    }
    const bool is_bad = i == 3;
    buffer.fill_(is_bad ? kNan : static_cast<double>(i + 1));
    const at::Tensor loss = regression.loss(is_bad ? times(data[i], kNan) : data[i]);
    const StabilityResult result = manager.step(regression.model, loss, optimizer);
    EXPECT_EQ(result.skipped, is_bad);
    if (!is_bad) continue;
    expect_same(regression.tensors(), kept);
    EXPECT_TRUE(buffer.equal(at::full({2}, 2.0)));
    std::vector<at::Tensor> momentum;
    for (const auto& [name, tensor] : optimizer.state()) momentum.push_back(tensor);
    ASSERT_FALSE(momentum.empty());
    expect_same(momentum, kept_momentum);
  }
}

TEST(NumericalStability, ANanThatStaysEndsTrainingUnderEveryPolicy) {
  Regression regression;
  Optimizer optimizer = regression.descent();
  NumericalStabilityManager manager(
      StabilityConfigs{.nan_config = NanConfig{.policy = GuardPolicy::skip, .max_in_a_row = 2}});
  const auto step = [&] {
    return manager.step(regression.model, regression.loss(times(batches(1)[0], kNan)), optimizer);
  };
  EXPECT_TRUE(step().skipped);
  EXPECT_TRUE(step().skipped);
  EXPECT_THAT(error_of(ErrorCode::numerics, step), HasSubstr("faults in a row: wanted at most 2"));
  EXPECT_EQ(manager.get_performance_summary().nan_count, 3);
}

TEST(NumericalStability, AnOverflowThatTheScalerForgivesIsNoNan) {
  Regression regression, unscaled;
  Optimizer optimizer = regression.descent(), of_unscaled = unscaled.descent();
  GradScaler scaler;
  NumericalStabilityManager manager(
      StabilityConfigs{.clipping_config = ClippingConfig{.max_grad_norm = 0.1}, .nan_config = NanConfig{}});
  const TensorBatch batch = batches(1)[0];
  const std::vector<at::Tensor> before = regression.copies();
  const StabilityResult overflow = manager.step(regression.model, regression.loss(batch).mul(1e36), optimizer, &scaler);
  EXPECT_TRUE(overflow.skipped);
  EXPECT_FALSE(overflow.nan_detected.has_value());
  EXPECT_EQ(manager.get_performance_summary().nan_count, 0);
  EXPECT_EQ(manager.get_performance_summary().scaler_overflows, 1);
  EXPECT_EQ(scaler.get_scale(), 32768.0);
  expect_same(regression.tensors(), before);
  const StabilityResult result = manager.step(regression.model, regression.loss(batch), optimizer, &scaler);
  NumericalStabilityManager plain;
  const double norm = plain.step(unscaled.model, unscaled.loss(batch), of_unscaled).gradient_norm.value();
  EXPECT_FALSE(result.skipped);
  EXPECT_NEAR(result.gradient_norm.value(), norm, 1e-5 * norm);
  EXPECT_TRUE(result.clipped);
  EXPECT_NEAR(result.gradient_norm_clipped.value(), 0.1, 1e-5);
}

TEST(NumericalStability, TracesANanToItsOperationWhereAsked) {
  const auto step = [](TrainingWrapper& wrapper) {
    Regression regression;
    Optimizer optimizer = regression.descent();
    const Forward root = [&regression](const TensorBatch& batch) -> Output {
      return {regression.net->forward(batch["inputs"]).sub(100).sqrt().sum(), {}};
    };
    return wrapper.step(regression.model, root, batches(1)[0], optimizer);
  };
  TrainingWrapper asked = create_training_wrapper({.debug_config = DebugConfig{.detect_anomaly = true}});
  EXPECT_EQ(error_of(ErrorCode::numerics, [&] { step(asked); }),
            "train: result of aten::sqrt is nan in epoch 0, batch 0, at or after module 2");
  TrainingWrapper skipping = create_training_wrapper(
      {.nan_config = NanConfig{.policy = GuardPolicy::skip}, .debug_config = DebugConfig{.detect_anomaly = true}});
  EXPECT_EQ(step(skipping).nan_detected.value().operation, "aten::sqrt");
  TrainingWrapper plain = create_training_wrapper();
  EXPECT_FALSE(step(plain).nan_detected.has_value());
}

TEST(NumericalStability, WhatTheOptimizerDoesNotStepChangesNoStep) {
  Regression theirs, ours;
  const std::vector<at::Tensor> head{theirs.tensors()[2], theirs.tensors()[3]};
  torch::optim::SGD sgd(head, torch::optim::SGDOptions(0.05));
  Optimizer optimizer = ours.descent_of_the_head();
  NumericalStabilityManager manager(StabilityConfigs{.clipping_config = ClippingConfig{.max_grad_norm = 0.25}});
  for (const TensorBatch& batch : batches(5)) {
    theirs.net->zero_grad();
    theirs.loss(batch).backward();
    torch::nn::utils::clip_grad_norm_(head, 0.25);
    sgd.step();
    manager.step(ours.model, ours.loss(batch), optimizer);
    EXPECT_FALSE(ours.tensors()[0].grad().defined());
  }
  expect_same(ours.tensors(), theirs.tensors(), 1e-6);
}

}  // namespace
}  // namespace headrace::facade
