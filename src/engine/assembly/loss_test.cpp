#include <ATen/ops/arange.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loss.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSamples = 6, kClasses = 3;

class Loss : public testing::Test {
 protected:
  Loss() {
    at::manual_seed(3);
    logits_ = at::randn({kSamples, kClasses});
    labels_ = at::arange(kSamples, at::kLong).remainder(kClasses);
  }

  TensorBatch batch() const { return {{"image", at::zeros({kSamples, 1, 1, 1})}, {"labels", labels_}}; }
  // The first so many samples count.
  TensorBatch batch_of(std::int64_t counted) const {
    TensorBatch some = batch();
    some.valid = at::ones({kSamples}, at::kByte);
    some.valid.slice(0, counted, kSamples).zero_();
    return some;
  }
  // Shares of the classes in the targets of the first so many samples.
  at::Tensor targets(std::int64_t counted, double smoothing) const {
    return at::one_hot(labels_.slice(0, 0, counted), kClasses).to(at::kFloat).mul(1 - smoothing).add(smoothing / 3);
  }

  at::Tensor logits_, labels_;
};

double loss_of(const at::Tensor& logits, const TensorBatch& batch, const LossOptions& options) {
  return classification(logits, batch, options).loss.item<double>();
}

TEST_F(Loss, OfBinaryCrossEntropyIsTheFormulaClassByClass) {
  for (const double smoothing : {0.0, 0.3}) {
    const LossOptions options{.name = LossName::bce, .label_smoothing = smoothing};
    const auto wanted = [&](std::int64_t counted) {
      const at::Tensor some = logits_.slice(0, 0, counted), target = targets(counted, smoothing);
      const at::Tensor yes = some.sigmoid().log().mul(target), no = some.neg().sigmoid().log().mul(target.neg().add(1));
      return -yes.add(no).mean().item<double>();
    };
    EXPECT_NEAR(loss_of(logits_, batch(), options), wanted(kSamples), 1e-6);
    EXPECT_NEAR(loss_of(logits_, batch_of(4), options), wanted(4), 1e-6);
    EXPECT_EQ(loss_of(logits_, batch_of(0), options), 0);
  }
}

TEST_F(Loss, OfSquaredErrorsIsTheirMeanOverSamplesAndClasses) {
  const LossOptions options{.name = LossName::mse, .label_smoothing = 0.3};
  const auto wanted = [&](std::int64_t counted) {
    return logits_.slice(0, 0, counted).sub(targets(counted, 0.3)).square().mean().item<double>();
  };
  EXPECT_NEAR(loss_of(logits_, batch(), options), wanted(kSamples), 1e-6);
  EXPECT_NEAR(loss_of(logits_, batch_of(5), options), wanted(5), 1e-6);
}

TEST_F(Loss, WithClassWeightsIsTheMeanWeightedByThoseOfTheLabelsAndTellsTheirSum) {
  const LossOptions options{.class_weights = {1.0, 0.25, 4.0}};
  const std::vector<double> of_labels{1.0, 0.25, 4.0, 1.0, 0.25, 4.0};
  const at::Tensor log_shares = logits_.log_softmax(1);
  for (const std::int64_t counted : {std::int64_t{4}, kSamples}) {
    double losses = 0, weights = 0;
    for (std::int64_t i = 0; i < counted; ++i) {
      const double weight = of_labels[static_cast<std::size_t>(i)];
      losses -= weight * log_shares.select(0, i).select(0, i % kClasses).item<double>();
      weights += weight;
    }
    const Output output = classification(logits_, counted == kSamples ? batch() : batch_of(counted), options);
    EXPECT_NEAR(output.loss.item<double>(), losses / weights, 1e-6) << counted;
    EXPECT_NEAR(output.weight.value(), weights, 1e-12) << counted;
  }
  const Output none = classification(logits_, batch_of(0), options);
  EXPECT_EQ(none.loss.item<double>(), 0);
  EXPECT_EQ(none.weight.value(), 0);
}

TEST_F(Loss, OfSoftTargetsIsTheirShareOfTheCrossEntropy) {
  const at::Tensor shares = at::randn({kSamples, kClasses}).softmax(1), log_shares = logits_.log_softmax(1);
  const at::Tensor weights = at::tensor({1.0F, 0.25F, 4.0F});
  for (const std::int64_t counted : {std::int64_t{4}, kSamples}) {
    TensorBatch soft{{"labels", shares}};
    if (counted < kSamples) soft.valid = batch_of(counted).valid;
    const auto wanted = [&](const at::Tensor& of_classes) {
      return -log_shares.mul(shares).mul(of_classes).slice(0, 0, counted).sum().item<double>() /
             static_cast<double>(counted);
    };
    EXPECT_NEAR(loss_of(logits_, soft, {}), wanted(at::ones({kClasses})), 1e-6);
    const Output weighted = classification(logits_, soft, {.class_weights = {1.0, 0.25, 4.0}});
    EXPECT_NEAR(weighted.loss.item<double>(), wanted(weights), 1e-6);
    EXPECT_EQ(weighted.weight.value(), static_cast<double>(counted)) << "as PyTorch divides";
  }
  // Shares that are one class's are its label.
  const TensorBatch hard{{"labels", at::one_hot(labels_, kClasses)}};
  const LossOptions smoothed{.label_smoothing = 0.2};
  EXPECT_NEAR(loss_of(logits_, hard, smoothed), loss_of(logits_, batch(), smoothed), 1e-6);
}

TEST_F(Loss, OfSeveralLabelsASampleIsTheBinaryCrossEntropyOfEachClass) {
  const at::Tensor several = at::tensor({1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1}, at::kLong).view({6, 3});
  TensorBatch given{{"labels", several}};
  const auto wanted = [&](std::int64_t counted) {
    const at::Tensor target = several.to(at::kFloat), no = target.neg().add(1);
    const at::Tensor of_each = logits_.sigmoid().log().mul(target).add(logits_.neg().sigmoid().log().mul(no));
    return -of_each.slice(0, 0, counted).mean().item<double>();
  };
  EXPECT_NEAR(loss_of(logits_, given, {.name = LossName::bce}), wanted(kSamples), 1e-6);
  given.valid = batch_of(4).valid;
  EXPECT_NEAR(loss_of(logits_, given, {.name = LossName::bce}), wanted(4), 1e-6);
}

TEST_F(Loss, OfNumbersIsTheirSquaredError) {
  const at::Tensor numbers = at::randn({kSamples, kClasses}), one_logit = at::randn({kSamples, 1});
  const LossOptions options{.name = LossName::mse};
  EXPECT_NEAR(loss_of(logits_, {{"labels", numbers}}, options), logits_.sub(numbers).square().mean().item<double>(),
              1e-6);
  const at::Tensor one = numbers.select(1, 0);
  EXPECT_NEAR(loss_of(one_logit, {{"labels", one}}, options),
              one_logit.squeeze(1).sub(one).square().mean().item<double>(), 1e-6);
}

TEST_F(Loss, LabelsOfAnotherShapeOrDtypeAreRefusedByBoth) {
  const auto refusal = [this](const at::Tensor& labels) {
    return error_of(ErrorCode::invalid_argument, [&] { classification(logits_, {{"labels", labels}}, {}); });
  };
  EXPECT_THAT(refusal(at::zeros({kSamples, 2})),
              HasSubstr("of a target for each of [6, 3] logits, found Float [6, 2]"));
  EXPECT_THAT(refusal(at::zeros({4}, at::kLong)), HasSubstr("a class a sample, int64 [6]"));
  EXPECT_THAT(refusal(at::zeros({kSamples})), HasSubstr("found Float [6]"));
}

TEST_F(Loss, OfLogitsOf16BitsIsInFloat32) {
  for (const LossName name : {LossName::bce, LossName::mse}) {
    const LossOptions options{.name = name};
    const Output output = classification(logits_.to(at::kBFloat16), batch(), options);
    EXPECT_EQ(output.loss.scalar_type(), at::kFloat);
    EXPECT_EQ(output.named.at("logits").scalar_type(), at::kBFloat16);
    EXPECT_NEAR(output.loss.item<double>(), loss_of(logits_, batch(), options), 0.02);
  }
}

TEST_F(Loss, OfEachNameHasAGradient) {
  for (const auto& [name, text] : choices(LossName{})) {
    const at::Tensor logits = logits_.clone().requires_grad_();
    classification(logits, batch_of(4), LossOptions{.name = name, .label_smoothing = 0.1}).loss.backward();
    EXPECT_GT(logits.grad().slice(0, 0, 4).abs().min().item<double>(), 0) << text;
    EXPECT_EQ(logits.grad().slice(0, 4, kSamples).abs().max().item<double>(), 0) << text;
  }
}

}  // namespace
}  // namespace headrace
