#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/grad_scaler.h>

#include <limits>
#include <map>
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
  parameter.mutable_grad() = at::randn({4});
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

TEST(GradScaler, RefusesCallsOutOfOrder) {
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  GradScaler scaler;
  const auto refused = [](const auto& call) { return error_of(ErrorCode::invalid_argument, call); };
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

TEST(GradScaler, RefusesGradientsOfFloat16AndFactorsThatDoNotMoveTheScale) {
  const at::Tensor parameter = at::zeros({4}, at::kHalf).requires_grad_();
  parameter.mutable_grad() = at::zeros({4}, at::kHalf);
  Descent optimizer(parameter);
  GradScaler scaler;
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
}

TEST(GradScaler, TakesItsStateUpAgainByTheNamesOfTorch) {
  GradScaler scaler(
      GradScalerState{.scale = 1024.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 3});
  const at::Tensor parameter = parameter_of(1.0);
  Descent optimizer(parameter);
  const auto update = [&](GradScaler& used) {
    parameter.mutable_grad() = at::full({4}, 1.0);
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

}  // namespace
}  // namespace headrace
