#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/autocast.h>

#include <stdexcept>

#include "core/base/error_of.h"

namespace headrace {
namespace {

at::ScalarType linear_type() {
  return at::linear(at::randn({2, 8}), at::randn({4, 8})).scalar_type();
}

TEST(Autocast, CastsInItsScopeAndRestoresAlsoByException) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(linear_type(), at::kFloat);
    try {
      Autocast scope(at::kCPU, dtype);
      EXPECT_EQ(linear_type(), dtype);
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
      EXPECT_EQ(linear_type(), at::kFloat);
    }
  }
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16) << "LibTorch's own";
}

TEST(Autocast, ComputesLossesInFloat32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Autocast scope(at::kCPU, dtype);
    const at::Tensor output = at::linear(at::randn({2, 8}), at::randn({4, 8}));
    EXPECT_EQ(at::mse_loss(output, at::randn({2, 4})).scalar_type(), at::kFloat);
  }
}

TEST(Autocast, NestsAndIsSwitchedOffWithin) {
  Autocast outer(at::kCPU, at::kBFloat16);
  {
    Autocast inner(at::kCPU, at::kHalf);
    EXPECT_EQ(linear_type(), at::kHalf);
  }
  EXPECT_EQ(linear_type(), at::kBFloat16);
  {
    Autocast off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    EXPECT_EQ(linear_type(), at::kFloat);
  }
  EXPECT_EQ(linear_type(), at::kBFloat16);
}

TEST(Autocast, OfADeviceLeavesTheOtherAlone) {
  Autocast scope(at::kCUDA, at::kHalf);
  EXPECT_EQ(linear_type(), at::kFloat);
}

TEST(Autocast, SeesAWeightThatChangedBetweenScopes) {
  const at::Tensor input = at::full({1, 4}, 1.0);
  at::Tensor weight = at::full({1, 4}, 1.0).requires_grad_();
  const auto sum = [&] {
    Autocast scope(at::kCPU, at::kBFloat16);
    return at::linear(input, weight).item<float>();
  };
  EXPECT_EQ(sum(), 4.0F);
  weight.detach().fill_(2.0);
  EXPECT_EQ(sum(), 8.0F);
}

TEST(Autocast, RefusesOtherTypesAndDevices) {
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { Autocast scope(at::kCPU, at::kFloat); }),
            "numerics: autocast wants dtype BFloat16 or Half, found Float");
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { Autocast scope(at::kMeta, at::kHalf); }),
            "numerics: autocast wants device cpu or cuda, found meta");
  EXPECT_EQ(linear_type(), at::kFloat);
}

}  // namespace
}  // namespace headrace
