#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "numerics/autocast.h"
#include "numerics/clip.h"

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
