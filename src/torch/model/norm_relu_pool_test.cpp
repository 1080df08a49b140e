#include "torch/model/norm_relu_pool.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "core/base/error_of.h"
#include "core/base/kernel_sets.h"
#include "torch/model/norm_relu_pool_kernels.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Weights of both signs and 0; biases that leave whole windows below 0, and whole channels above.
NormTensors norm_of(std::int64_t channels, at::ScalarType type = at::kFloat) {
  const at::Tensor index = at::arange(channels, at::TensorOptions(at::kFloat));  // The same floats in either type.
  return {(index * 0.7).sin().mul(1.5).mul(index.remainder(5).ne(4)).to(type).requires_grad_(),
          (index * 1.1).cos().mul(1.3).to(type).requires_grad_(), index.mul(0.01).to(type),
          index.remainder(3).add(0.5).to(type)};
}

struct Results {
  at::Tensor y, dx, dweight, dbias, running_mean, running_var;
};

// `operation` on the input, and backward from the output's gradient.
template <class Operation>
Results run(const at::Tensor& input, NormTensors norm, const at::Tensor& dy, const Operation& operation) {
  const at::Tensor x = input.detach().requires_grad_();
  const at::Tensor y = operation(x, norm);
  const auto gradients = torch::autograd::grad({y}, {x, norm.weight, norm.bias}, {dy.to(y.scalar_type())});
  return {y.detach(), gradients[0], gradients[1], gradients[2], norm.running_mean, norm.running_var};
}

at::Tensor three_operators(const at::Tensor& x, const NormTensors& norm, const NormReluPool& settings) {
  const at::Tensor y = at::batch_norm(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, settings.training,
                                      settings.momentum, settings.epsilon, false)
                           .relu();
  return settings.pool ? at::max_pool2d(y, 2) : y;
}

Results ours(const at::Tensor& x, const at::Tensor& dy, const NormReluPool& settings) {
  return run(x, norm_of(x.size(1)), dy,
             [&](const at::Tensor& input, const NormTensors& norm) { return norm_relu_pool(input, norm, settings); });
}

Results truth(const at::Tensor& x, const at::Tensor& dy, const NormReluPool& settings) {
  return run(x.to(at::kDouble), norm_of(x.size(1), at::kDouble), dy,
             [&](const at::Tensor& input, const NormTensors& norm) { return three_operators(input, norm, settings); });
}

// The largest difference over the largest value.
double distance(const at::Tensor& found, const at::Tensor& wanted) {
  const double scale = wanted.abs().max().item<double>();
  return (found.to(at::kDouble) - wanted).abs().max().item<double>() / std::max(scale, 1e-30);
}

void expect_near(const Results& found, const Results& wanted, double output, double gradient) {
  EXPECT_LE(distance(found.y, wanted.y), output);
  EXPECT_LE(distance(found.dx, wanted.dx), gradient);
  EXPECT_LE(distance(found.dweight, wanted.dweight), std::min(gradient, 1e-5));
  EXPECT_LE(distance(found.dbias, wanted.dbias), std::min(gradient, 1e-5));
  EXPECT_LE(distance(found.running_mean, wanted.running_mean), 2e-6);
  EXPECT_LE(distance(found.running_var, wanted.running_var), 2e-6);
}

// Multiples of 1/8: many ties, and no values so close that rounding would choose between them.
at::Tensor coarse(const Shape& shape) {
  return at::randn(shape).mul(8).round().div(8);
}

const std::vector<Shape> kShapes{{4, 3, 1, 1},    {5, 1, 3, 5},   {2, 3, 3, 5},    {3, 16, 28, 28},
                                 {2, 17, 7, 9},   {2, 32, 2, 2},  {2, 64, 14, 14}, {1, 33, 5, 37},
                                 {1, 1, 131, 67}, {1, 2, 4, 700}, {150, 3, 2, 3},  {2, 48, 3, 130}};

class NormReluPoolSets : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::manual_seed(11);
    use_kernel_set(GetParam());
  }
  void TearDown() override { use_kernel_set(""); }

  static void compare(const at::Tensor& x, double output, double gradient) {
    for (const bool pool : {true, false}) {
      if (pool && (x.size(2) < 2 || x.size(3) < 2)) continue;
      for (const bool training : {true, false}) {
        const NormReluPool settings{training, pool};
        SCOPED_TRACE(fmt::format("({}), strides ({}), training {}, pool {}", fmt::join(x.sizes(), ", "),
                                 fmt::join(x.strides(), ", "), training, pool));
        const at::Tensor wanted_y = three_operators(x.to(at::kDouble), norm_of(x.size(1), at::kDouble), settings);
        const at::Tensor dy = at::randn(wanted_y.sizes()).to(x.scalar_type());
        expect_near(ours(x, dy, settings), truth(x, dy, settings), output, gradient);
      }
    }
  }
};

TEST_P(NormReluPoolSets, AreAsPrecise) {
  for (const Shape& shape : kShapes) {
    const at::Tensor x = coarse(shape);
    compare(x, 2e-6, 1e-5);
    compare(x.contiguous(at::MemoryFormat::ChannelsLast), 2e-6, 1e-5);
  }
}

TEST_P(NormReluPoolSets, RoundOnlyWhatTheyReturnToBfloat16) {
  for (const Shape& shape : kShapes) {
    const at::Tensor x = coarse(shape).to(at::kBFloat16);
    compare(x, 0.004, 0.004);  // Half a step of 8 bits.
    compare(x.contiguous(at::MemoryFormat::ChannelsLast), 0.004, 0.004);
  }
}

TEST_P(NormReluPoolSets, DoNotCancelWhereTheMeanIsFarFromZero) {
  for (const Shape& shape : {Shape{8, 32, 14, 14}, Shape{8, 3, 15, 33}}) {
    at::Tensor x = coarse(shape).add(3000.0);
    x.select(0, 0).select(1, 0).select(1, 0).add_(50);  // The value that sums are shifted by is far out.
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const at::Tensor dy = at::randn({shape[0], shape[1], shape[2] / 2, shape[3] / 2});
      const Results found = ours(x.contiguous(format), dy, {}), wanted = truth(x, dy, {});
      expect_near(found, wanted, 2e-6, 1e-5);
    }
  }
}

TEST_P(NormReluPoolSets, PassNanOnAsPyTorchDoes) {
  for (const float strange : {kNan, kInfinity, -kInfinity}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      for (const bool training : {true, false}) {
        const NormReluPool settings{training, true};
        at::Tensor x = coarse({2, 19, 6, 6});
        x.index_put_({at::tensor(1), at::tensor(2), at::tensor(3), at::tensor(2)}, at::tensor(strange));
        const at::Tensor dy = at::randn({2, 19, 3, 3});
        const Results found = ours(x.contiguous(format), dy, settings), wanted = truth(x, dy, settings);
        SCOPED_TRACE(fmt::format("{}, training {}", strange, training));
        EXPECT_TRUE(found.y.isnan().equal(wanted.y.isnan()));
        EXPECT_TRUE(found.y.isinf().equal(wanted.y.isinf()));
        EXPECT_TRUE(found.dx.isnan().equal(wanted.dx.isnan()));
        EXPECT_TRUE(at::allclose(found.dbias.to(at::kDouble), wanted.dbias, 1e-5, 1e-5, true));
        EXPECT_TRUE(found.running_mean.isfinite().equal(wanted.running_mean.isfinite()));
      }
    }
  }
}

TEST_P(NormReluPoolSets, GiveTheGradientOfEqualValuesToTheFirst) {
  const at::Tensor x = at::ones({1, 20, 4, 6});
  NormTensors norm{at::ones({20}).requires_grad_(), at::ones({20}).requires_grad_(), at::zeros({20}), at::ones({20})};
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const Results found =
        run(x.contiguous(format), norm, at::ones({1, 20, 2, 3}),
            [](const auto& input, const auto& n) { return norm_relu_pool(input, n, {.training = false}); });
    EXPECT_EQ(found.dx.gt(0).sum().item<std::int64_t>(), 20 * 6);
    EXPECT_TRUE(found.dx.slice(2, 0, 4, 2).slice(3, 0, 6, 2).gt(0).all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(Every, NormReluPoolSets, ::testing::ValuesIn(kernel_sets()),
                         [](const auto& of) { return of.param; });

TEST(NormReluPool, IsTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  at::manual_seed(3);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor x = at::randn({9, 32, 14, 14}).contiguous(format), dy = at::randn({9, 32, 7, 7});
    at::set_num_threads(1);
    const Results one = ours(x, dy, {});
    at::set_num_threads(3);
    const Results three = ours(x, dy, {});
    EXPECT_TRUE(one.y.equal(three.y));
    EXPECT_TRUE(one.dx.equal(three.dx));
    EXPECT_TRUE(one.dweight.equal(three.dweight));
    EXPECT_TRUE(one.running_var.equal(three.running_var));
  }
  at::set_num_threads(threads);
}

TEST(NormReluPool, KeepsTypeAndLayoutAndTakesAnyStrides) {
  const at::Tensor x = at::randn({2, 16, 8, 10});
  const at::Tensor last = norm_relu_pool(x.contiguous(at::MemoryFormat::ChannelsLast), norm_of(16), {});
  EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(norm_relu_pool(x, norm_of(16), {}).is_contiguous());
  EXPECT_EQ(norm_relu_pool(x.to(at::kBFloat16), norm_of(16), {}).scalar_type(), at::kBFloat16);

  const at::Tensor strided = x.transpose(2, 3), dense = strided.contiguous();
  const at::Tensor dy = at::randn({2, 16, 5, 4});
  EXPECT_TRUE(ours(strided, dy, {}).dx.equal(ours(dense, dy, {}).dx));
  EXPECT_TRUE(ours(dense, dy.contiguous(at::MemoryFormat::ChannelsLast), {}).dx.equal(ours(dense, dy, {}).dx));
}

TEST(NormReluPool, LeavesRunningStatisticsAloneInEvaluation) {
  const NormTensors norm = norm_of(5), before = norm_of(5);
  norm_relu_pool(at::randn({2, 5, 4, 4}), norm, {.training = false});
  EXPECT_TRUE(norm.running_mean.equal(before.running_mean));
  EXPECT_TRUE(norm.running_var.equal(before.running_var));
}

std::string refusal(const at::Tensor& x, const NormTensors& norm, const NormReluPool& settings = {}) {
  return error_of(ErrorCode::invalid_argument, [&] { norm_relu_pool(x, norm, settings); });
}

TEST(NormReluPool, RefusesWhatItCannotDoInOneLine) {
  const NormTensors norm = norm_of(3);
  EXPECT_THAT(refusal(at::zeros({0, 3, 4, 4}), norm), HasSubstr("wanted at least 1 image of 2x2, found Float (0, 3"));
  EXPECT_THAT(refusal(at::zeros({2, 3, 1, 4}), norm), HasSubstr("wanted at least 1 image of 2x2"));
  EXPECT_THAT(refusal(at::zeros({2, 3, 4}), norm), HasSubstr("found Float (2, 3, 4)"));
  EXPECT_THAT(refusal(at::zeros({2, 3, 4, 4}, at::kDouble), norm), HasSubstr("found Double"));
  EXPECT_THAT(refusal(at::zeros({2, 4, 4, 4}), norm), HasSubstr("dense Float (4), found Float (3)"));
  EXPECT_THAT(refusal(at::zeros({1, 3, 1, 1}), norm, {.pool = false}), HasSubstr("more than 1 value a channel"));
}

TEST(NormReluPool, SaysThatItHasNoSecondDerivative) {
  const at::Tensor x = at::randn({2, 3, 4, 4}).requires_grad_();
  const at::Tensor y = norm_relu_pool(x, norm_of(3), {});
  try {
    torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("no second derivative"));
  }
}

}  // namespace
}  // namespace headrace
