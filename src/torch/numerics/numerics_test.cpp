#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "torch/numerics/autocast.h"
#include "torch/numerics/clip.h"
#include "torch/numerics/loss_scale.h"

namespace headrace {
namespace {

double joint_norm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) sum += gradient.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

TEST(ClipGradients, BringsAHugeGradientToTheNorm) {
  at::manual_seed(1);
  const std::vector<at::Tensor> gradients{at::randn({2000, 1000}).mul_(1e6), at::randn({7}),
                                          at::randn({640, 30, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast),
                                          at::randn({300, 200}).t().slice(0, 0, 150)};
  const double before = joint_norm(gradients);
  EXPECT_NEAR(clip_gradients(gradients, 1.0) / before, 1.0, 5e-7);
  EXPECT_LE(joint_norm(gradients), 1.0 + 1e-6);
  EXPECT_GE(joint_norm(gradients), 1.0 - 1e-6);
}

TEST(ClipGradients, LeavesTheBitsOfASmallGradient) {
  const std::vector<at::Tensor> gradients{at::randn({10}), at::randn({5, 5})};
  std::vector<at::Tensor> copies;
  for (const at::Tensor& gradient : gradients) copies.push_back(gradient.clone());
  EXPECT_NEAR(clip_gradients(gradients, 1000.0), joint_norm(copies), 1e-4);
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(gradients[i].equal(copies[i]));
}

TEST(ClipGradients, ReturnsANormThatIsNotFiniteAndChangesNothing) {
  const std::vector<at::Tensor> gradients{at::randn({10}), at::full({1}, std::numeric_limits<float>::infinity())};
  const at::Tensor copy = gradients[0].clone();
  EXPECT_TRUE(std::isinf(clip_gradients(gradients, 1.0)));
  EXPECT_TRUE(gradients[0].equal(copy));
}

TEST(ClipGradients, OfNothingIsZero) {
  EXPECT_EQ(clip_gradients({}, 1.0), 0.0);
}

TEST(ClipGradients, TakesALossScaleOffBeforeItClips) {
  at::manual_seed(2);
  for (const double norm_max : {0.5, 1e6}) {
    std::vector<at::Tensor> gradients{at::randn({300, 100}), at::randn({7})}, scaled;
    for (const at::Tensor& gradient : gradients) scaled.push_back(gradient.mul(65536.0));
    const double wanted = clip_gradients(gradients, norm_max);
    EXPECT_NEAR(clip_gradients(scaled, norm_max, 1.0 / 65536) / wanted, 1.0, 1e-6);
    for (std::size_t i = 0; i < scaled.size(); ++i) EXPECT_TRUE(scaled[i].allclose(gradients[i], 1e-6, 0));
  }
}

TEST(ClipGradients, ScaledGradientsWhoseNormIsBeyondFloat32AreClippedNonetheless) {
  const std::vector<at::Tensor> gradients{at::full({100}, 1e30F)};
  EXPECT_NEAR(clip_gradients(gradients, 5.0, 1e-30), 10.0, 1e-5);
  EXPECT_NEAR(joint_norm(gradients), 5.0, 1e-5);
  const std::vector<at::Tensor> infinite{at::full({2}, std::numeric_limits<float>::infinity())};
  EXPECT_FALSE(std::isfinite(clip_gradients(infinite, 5.0, 1e-30)));
}

TEST(LossScale, HalvesOnAnUpdateThatIsNotFiniteAndDoublesAfterTwoThousandGoodOnes) {
  LossScale scale{65536.0};
  for (int i = 0; i < 1999; ++i) scale = scale.after(true);
  EXPECT_EQ(scale.scale, 65536.0);
  scale = scale.after(false);
  EXPECT_EQ(scale.scale, 32768.0);
  for (int i = 0; i < 2000; ++i) scale = scale.after(true);
  EXPECT_EQ(scale.scale, 65536.0);
  EXPECT_EQ(scale.good_updates, 0);
  EXPECT_EQ((LossScale{0x1p126, 1999}.after(true).scale), 0x1p126) << "its inverse must stay a normal float32";
}

TEST(LossScale, GivesUpWhereNoScaleMakesGradientsFinite) {
  LossScale scale{1.0};
  const auto halve_for_ever = [&] {
    while (true) scale = scale.after(false);
  };
  EXPECT_THROW(halve_for_ever(), Error);
  EXPECT_LT(scale.scale, 1e-6);
}

TEST(UnscaleGradients, DividesAndTellsOfWhatIsNotFinite) {
  const std::vector<at::Tensor> gradients{at::full({3}, 8.0F), at::full({2, 2}, -4.0F)};
  EXPECT_TRUE(unscale_gradients(gradients, 4.0));
  EXPECT_TRUE(gradients[0].eq(2.0).all().item<bool>());
  EXPECT_TRUE(gradients[1].eq(-1.0).all().item<bool>());
  gradients[1].select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(unscale_gradients(gradients, 4.0));
  EXPECT_TRUE(unscale_gradients({}, 4.0));
}

at::ScalarType linear_type() {
  return at::linear(at::randn({2, 8}), at::randn({4, 8})).scalar_type();
}

TEST(Autocast, CastsInItsScopeAndRestoresAlsoByException) {
  EXPECT_EQ(linear_type(), at::kFloat);
  try {
    AutocastBf16 scope(true);
    EXPECT_EQ(linear_type(), at::kBFloat16);
    {
      AutocastBf16 inner(false);
      EXPECT_EQ(linear_type(), at::kBFloat16) << "a disabled scope changes nothing";
    }
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(linear_type(), at::kFloat);
  }
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  { AutocastBf16 scope(true); }
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

TEST(Autocast, SeesAWeightThatChangedBetweenScopes) {
  const at::Tensor input = at::full({1, 4}, 1.0);
  at::Tensor weight = at::full({1, 4}, 1.0).requires_grad_();
  const auto sum = [&] {
    AutocastBf16 scope(true);
    return at::linear(input, weight).item<float>();
  };
  EXPECT_EQ(sum(), 4.0F);
  weight.detach().fill_(2.0);
  EXPECT_EQ(sum(), 8.0F);
}

}  // namespace
}  // namespace headrace
