#include "torch/train/operator_flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(OperatorFlops, AProductOfMatricesIsTwoForEachMultiplication) {
  const at::Tensor a = at::ones({2, 3}), b = at::ones({3, 4}), bias = at::ones({4});
  const OperatorFlops flops;
  at::mm(a, b);
  EXPECT_EQ(flops.counted(), 2 * 2 * 3 * 4);
  at::addmm(bias, a, b);
  EXPECT_EQ(flops.counted(), 2 * (2 * 2 * 3 * 4));
  at::relu(a);  // What is not counted adds nothing.
  EXPECT_EQ(flops.counted(), 2 * (2 * 2 * 3 * 4));
}

TEST(OperatorFlops, OfAConvolutionForwardAndBackwardAreThreeTimesTheForward) {
  const at::Tensor input = at::ones({2, 3, 8, 8}).set_requires_grad(true);
  const at::Tensor weight = at::ones({5, 3, 3, 3}).set_requires_grad(true);
  const OperatorFlops flops;
  const at::Tensor output = at::conv2d(input, weight);  // [2, 5, 6, 6]
  const double forward = 2.0 * (2 * 5 * 6 * 6) * (3 * 3 * 3);
  EXPECT_EQ(flops.counted(), forward);
  output.sum().backward();
  EXPECT_EQ(flops.counted(), 3 * forward);
}

TEST(OperatorFlops, OfAnInputWithoutAGradientOnlyThatOfTheWeightIsCounted) {
  const at::Tensor input = at::ones({1, 3, 8, 8}), weight = at::ones({5, 3, 3, 3}).set_requires_grad(true);
  const OperatorFlops flops;
  at::conv2d(input, weight).sum().backward();
  EXPECT_EQ(flops.counted(), 2 * 2.0 * (5 * 6 * 6) * (3 * 3 * 3));
}

TEST(OperatorFlops, OneWithinTheLifeOfAnotherCountsNothing) {
  const at::Tensor a = at::ones({2, 2});
  const OperatorFlops outer;
  {
    const OperatorFlops inner;
    at::mm(a, a);
    EXPECT_EQ(inner.counted(), 0);
  }
  at::mm(a, a);
  EXPECT_EQ(outer.counted(), 2 * 2 * 2 * 2 * 2);
}

}  // namespace
}  // namespace headrace
