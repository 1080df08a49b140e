#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/clip_gradients.h>
#include <headrace/grad_scaler.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/numerics/unscale.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor parameter_of(double value) {
  return at::full({4}, value).requires_grad_();
}

// Plain descent over one parameter, as an optimizer of Headrace shows it.
class Descent {
 public:
  explicit Descent(const at::Tensor& parameter) : parameters_{{"weight", parameter}} {}
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  void step(double lr) {
    at::Tensor values = parameters_[0].second.detach();
    values.sub_(parameters_[0].second.grad().mul(lr));
    ++steps;
  }
  int steps = 0;

 private:
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

// The same as torch::optim shows it.
class TorchDescent {
 public:
  class Group {
   public:
    explicit Group(const at::Tensor& parameter) : tensors_{parameter} {}
    const std::vector<at::Tensor>& params() const { return tensors_; }

   private:
    std::vector<at::Tensor> tensors_;
  };
  explicit TorchDescent(const at::Tensor& parameter) : groups_{Group(parameter)} {}
  std::vector<Group>& param_groups() { return groups_; }
  void step() {
    const at::Tensor& parameter = groups_[0].params()[0];
    parameter.detach().sub_(parameter.grad());
  }
  template <class Closure>
  void step(const Closure& closure) {
    closure();
    step();
  }

 private:
  std::vector<Group> groups_;
};

TEST(GradScaler, HalvesOnInfinityAndDoublesAfterTwoThousandGoodUpdates) {
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  GradScaler scaler;
  const auto update = [&](float gradient) {
    parameter.mutable_grad() = scaler.scale(at::full({4}, gradient));
    const bool stepped = scaler.step(optimizer, 0.0);
    scaler.update();
    return stepped;
  };
  for (int i = 0; i < 1999; ++i) EXPECT_TRUE(update(1.0F));
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_FALSE(update(kInfinity));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
  for (int i = 0; i < 1999; ++i) EXPECT_TRUE(update(1.0F));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
  EXPECT_TRUE(update(1.0F));
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(optimizer.steps, 3999);
}

TEST(GradScaler, LeavesTheBitsOfTheWeightsWhereAStepIsSkipped) {
  const at::Tensor parameter = at::randn({4}).requires_grad_();
  const at::Tensor before = parameter.detach().clone();
  TorchDescent optimizer(parameter);
  GradScaler scaler;
  parameter.mutable_grad() = scaler.scale(at::randn({4}));
  parameter.grad().select(0, 2).fill_(kInfinity);
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_TRUE(parameter.equal(before));
}

TEST(GradScaler, UpdatesOnceAWindowOfFourMicroBatchesAsWithoutAScale) {
  const at::Tensor scaled = parameter_of(0.5), plain = parameter_of(0.5);
  Descent scaled_descent(scaled), plain_descent(plain);
  GradScaler scaler;
  for (int i = 1; i <= 4; ++i) {
    const at::Tensor batch = at::full({4}, 0.1 * i);
    scaler.scale(scaled.mul(batch).square().mean()).backward();
    plain.mul(batch).square().mean().backward();
  }
  EXPECT_TRUE(scaler.step(scaled_descent, 0.1));
  scaler.update();
  plain_descent.step(0.1);
  EXPECT_TRUE(scaled.allclose(plain, 0, 1e-6));
  EXPECT_FALSE(scaled.equal(parameter_of(0.5)));
  EXPECT_EQ(scaled_descent.steps, 1);
  EXPECT_EQ(scaler.state_dict().at("_growth_tracker"), 1);
}

TEST(GradScaler, SkipsOneOfSeveralOptimizersAndLowersTheScaleOfAll) {
  const at::Tensor good = parameter_of(1.0), bad = parameter_of(1.0);
  Descent good_descent(good);
  TorchDescent bad_descent(bad);
  GradScaler scaler;
  good.mutable_grad() = scaler.scale(at::full({4}, 2.0));
  bad.mutable_grad() = at::full({4}, kInfinity);
  scaler.unscale_(good_descent);
  EXPECT_TRUE(good.grad().eq(2.0).all().item<bool>()) << "clipping sees what a loss of its own size gives";
  EXPECT_TRUE(scaler.step(good_descent, 0.25));
  EXPECT_FALSE(scaler.step(bad_descent));
  scaler.update();
  EXPECT_TRUE(good.eq(0.5).all().item<bool>());
  EXPECT_TRUE(bad.eq(1.0).all().item<bool>());
  EXPECT_EQ(scaler.get_scale(), 32768.0);
}

TEST(GradScaler, MakesAFloat32LossOfAFloat16OneAsTorch) {
  GradScaler scaler;
  const at::Tensor loss = at::full({}, 1.5, at::kHalf).requires_grad_();
  const at::Tensor scaled = scaler.scale(loss);
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 98304.0) << "beyond float16";
  scaler.update(1024.0);
  scaler.scale(loss).backward();
  EXPECT_EQ(loss.grad().scalar_type(), at::kHalf);
  EXPECT_EQ(loss.grad().item<double>(), 1024.0);
  const std::vector<at::Tensor> several = scaler.scale(
      std::vector<at::Tensor>{at::full({}, 1.5, at::kBFloat16), at::full({2}, 1.5, at::kHalf), at::full({}, 1.5)});
  EXPECT_EQ(several[0].scalar_type(), at::kFloat);
  EXPECT_EQ(several[1].scalar_type(), at::kHalf) << "a tensor with axes keeps its type";
  for (const at::Tensor& each : several) EXPECT_TRUE(each.eq(1536.0).all().item<bool>());
}

// The order of AMP: scale, backward, unscale, clip, step. Clipped with the scale on, the step would be 65536 times as
// short.
TEST(GradScaler, HasItsGradientsClippedBetweenUnscalingAndTheStep) {
  const auto weight_after = [](bool unscales_first) {
    const at::Tensor weight = at::ones({2}).requires_grad_();
    TorchDescent optimizer(weight);
    GradScaler scaler;
    scaler.scale(weight.mul(at::tensor({3.0F, -4.0F})).sum()).backward();
    if (unscales_first) scaler.unscale_(optimizer);
    const ClipReport report = clip_gradients(std::vector<at::Tensor>{weight}, {}, {.max_norm = 1.0});
    EXPECT_EQ(report.norm_before, unscales_first ? 5.0 : 5.0 * 65536);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    return weight.detach();
  };
  EXPECT_TRUE(weight_after(true).allclose(at::tensor({0.4F, 1.8F}), 0, 1e-6));
  EXPECT_TRUE(weight_after(false).allclose(at::ones({2}), 0, 2.0 / 65536));
}

TEST(GradScaler, OfAnOverflowClipsNothingAndHalvesTheScale) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  TorchDescent optimizer(weight);
  GradScaler scaler;
  scaler.scale(weight.mul(1e35).sum()).backward();
  scaler.unscale_(optimizer);
  const ClipReport report = clip_gradients(std::vector<at::Tensor>{weight}, {}, {.max_norm = 1.0});
  EXPECT_FALSE(report.finite);
  EXPECT_EQ(report.clipped, 0);
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(weight.equal(at::ones({2})));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
}

TEST(GradScaler, SetToAScaleKeepsCountingTheGoodUpdates) {
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  GradScaler scaler(GradScalerState{.growth_interval = 3});
  const auto update = [&](std::optional<double> scale) {
    parameter.mutable_grad() = scaler.scale(at::full({4}, 1.0));
    EXPECT_TRUE(scaler.step(optimizer, 0.0));
    scaler.update(scale);
  };
  update(std::nullopt);
  update(16.0);
  EXPECT_EQ(scaler.get_scale(), 16.0);
  EXPECT_EQ(scaler.state_dict().at("_growth_tracker"), 1.0);
  update(std::nullopt);
  update(std::nullopt);
  EXPECT_EQ(scaler.get_scale(), 32.0);
}

TEST(GradScaler, RefusesCallsOutOfOrder) {
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  GradScaler scaler;
  const auto refused = [](const auto& call) { return error_of(ErrorCode::invalid_argument, call); };
  parameter.mutable_grad() = at::full({4}, 1.0);
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("wanted scale() of a loss before unscale_()"));
  EXPECT_THAT(refused([&] { scaler.step(optimizer, 0.1); }), HasSubstr("wanted scale() of a loss before step()"));
  EXPECT_THAT(refused([&] { scaler.update(); }), HasSubstr("wanted scale() of a loss before update()"));
  EXPECT_TRUE(parameter.grad().eq(1.0).all().item<bool>());
  EXPECT_EQ(optimizer.steps, 0);
  parameter.mutable_grad().reset();
  scaler.scale(at::full({}, 1.0));
  EXPECT_THAT(refused([&] { scaler.update(); }),
              HasSubstr("wanted step() or unscale_() of an optimizer before update()"));
  EXPECT_THAT(refused([&] { scaler.step(optimizer, 0.1); }), HasSubstr("wanted gradients to take the loss scale off"));
  scaler.update(65536.0);
  parameter.mutable_grad() = at::full({4}, 1.0);
  scaler.unscale_(optimizer);
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("found a second"));
  scaler.step(optimizer, 0.1);
  EXPECT_THAT(refused([&] { scaler.step(optimizer, 0.1); }), HasSubstr("wanted one step() of an optimizer"));
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("wanted unscale_() before step()"));
  scaler.update();
  EXPECT_TRUE(scaler.step(optimizer, 0.1));
}

TEST(GradScaler, RefusesAClosure) {
  const at::Tensor parameter = parameter_of(1.0);
  TorchDescent optimizer(parameter);
  parameter.mutable_grad() = at::full({4}, 1.0);
  int calls = 0;
  const auto closure = [&calls] { ++calls; };
  GradScaler scaler, off({}, /*enabled=*/false);
  scaler.scale(at::full({}, 1.0));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { scaler.step(optimizer, closure); }),
              HasSubstr("wanted step() without a closure"));
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(off.step(optimizer, closure));
  EXPECT_EQ(calls, 1);
}

TEST(GradScaler, RefusesAScaleBeyondFloat32AndCountsThatAreNone) {
  const auto refused = [](const auto& call) { return error_of(ErrorCode::invalid_argument, call); };
  EXPECT_EQ(refused([] { GradScaler(GradScalerState{.scale = 1e39}); }),
            "numerics: scale: wanted a number that float32 holds, found 1e+39");
  GradScaler scaler;
  scaler.scale(at::full({}, 1.0));
  EXPECT_THAT(refused([&] { scaler.update(std::numeric_limits<double>::infinity()); }), HasSubstr("found inf"));
  const std::map<std::string, double> before = scaler.state_dict();
  for (const auto& [name, bad] :
       {std::pair{"scale", 1e39}, std::pair{"scale", std::nan("")}, std::pair{"growth_interval", std::nan("")},
        std::pair{"growth_interval", 2.5}, std::pair{"_growth_tracker", 1e300}}) {
    std::map<std::string, double> state = before;
    state["growth_factor"] = 3.0;
    state[name] = bad;
    EXPECT_THAT(refused([&] { scaler.load_state_dict(state); }),
                HasSubstr(std::string("numerics: ") + name + ": wanted"));
    EXPECT_EQ(scaler.state_dict(), before);
  }
}

TEST(GradScaler, RefusesGradientsOfFloat16AndFactorsThatDoNotMoveTheScale) {
  const at::Tensor parameter = at::zeros({4}, at::kHalf).requires_grad_();
  parameter.mutable_grad() = at::zeros({4}, at::kHalf);
  Descent optimizer(parameter);
  GradScaler scaler;
  scaler.scale(at::full({}, 1.0));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { scaler.unscale_(optimizer); }), HasSubstr("found float16"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { GradScaler(GradScalerState{.growth_factor = 1.0}); }),
              HasSubstr("growth_factor above 1, found 1"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { GradScaler(GradScalerState{.backoff_factor = 1.0}); }),
              HasSubstr("backoff_factor below 1, found 1"));
}

TEST(GradScaler, NotEnabledChangesNothingAndStepsAnyway) {
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  GradScaler scaler({}, /*enabled=*/false);
  const at::Tensor loss = at::full({}, 3.0);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  parameter.mutable_grad() = at::full({4}, kInfinity);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer, 1.0));
  scaler.update();
  EXPECT_EQ(optimizer.steps, 1);
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
  scaler.load_state_dict({{"scale", 8.0}, {"growth_interval", 1.0}});
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
}

TEST(GradScaler, TakesItsStateUpAgainByTheNamesOfTorch) {
  GradScaler scaler(
      GradScalerState{.scale = 1024.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 3});
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  const auto update = [&](GradScaler& used) {
    parameter.mutable_grad() = used.scale(at::full({4}, 1.0));
    used.step(optimizer, 0.1);
    used.update();
  };
  update(scaler);
  update(scaler);
  const std::map<std::string, double> state = scaler.state_dict();
  EXPECT_EQ(state, (std::map<std::string, double>{{"scale", 1024.0},
                                                  {"growth_factor", 4.0},
                                                  {"backoff_factor", 0.25},
                                                  {"growth_interval", 3.0},
                                                  {"_growth_tracker", 2.0}}));
  GradScaler again;
  again.load_state_dict(state);
  update(again);
  EXPECT_EQ(again.get_scale(), 4096.0);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { again.load_state_dict({}); }),
              HasSubstr("wanted scale in the state of a GradScaler, found 0 names"));
}

TEST(GradScalerState, GrowsAsFarAsFloat32IsFiniteAndFallsWithoutEnd) {
  const GradScalerState largest{.scale = 0x1p127, .growth_tracker = 1999};
  EXPECT_EQ(largest.after(false).scale, 0x1p127);
  EXPECT_EQ(largest.after(false).growth_tracker, 0);
  GradScalerState state;
  for (int i = 0; i < 200; ++i) state = state.after(true);
  EXPECT_EQ(state.scale, 0.0) << "as torch.amp.GradScaler; the Trainer gives up before";
}

TEST(UnscaleGradients, DividesAndTellsOfWhatIsNotFinite) {
  const std::vector<at::Tensor> gradients{at::full({3}, 8.0F), at::full({2, 2}, -4.0, at::kDouble)};
  EXPECT_FALSE(any_found(unscale_gradients(gradients, 4.0)));
  EXPECT_TRUE(gradients[0].eq(2.0).all().item<bool>());
  EXPECT_TRUE(gradients[1].eq(-1.0).all().item<bool>());
  gradients[1].select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(any_found(unscale_gradients(gradients, 4.0)));
  EXPECT_FALSE(any_found(unscale_gradients({}, 4.0)));
}

TEST(UnscaleGradients, GoesOnWhereTheInverseIsBeyondFloat32AsTorch) {
  for (const double scale : {0x1p-127, 0x1p-128, 0x1p-149, 0.0}) {
    const std::vector<at::Tensor> gradients{at::full({3}, 1e-3F), at::full({3}, -1e-3, at::kDouble)};
    EXPECT_FALSE(any_found(unscale_gradients(gradients, scale))) << scale << ": the gradients were finite";
    const float inverse = scale == 0x1p-127 ? 0x1p127F : kInfinity;
    EXPECT_TRUE(gradients[0].eq(1e-3F * inverse).all().item<bool>()) << scale;
    EXPECT_TRUE(gradients[1].lt(0).all().item<bool>()) << scale;
  }
}

}  // namespace
}  // namespace headrace
