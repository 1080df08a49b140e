#include "torch/numerics/clip.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/error_of.h"
#include "core/base/kernel_sets.h"
#include "torch/numerics/gradient_kernels.h"

namespace headrace {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Parameters of ones, or of `weights`, with these gradients.
Tensors parameters_with(const Tensors& gradients, const Tensors& weights = {}) {
  Tensors parameters;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor weight = weights.empty() ? at::ones_like(gradients[i]) : weights[i];
    parameters.push_back(weight.detach().requires_grad_());
    parameters.back().mutable_grad() = gradients[i];
  }
  return parameters;
}

ClipReport clip(const Tensors& gradients, const ClipOptions& options, double factor = 1.0,
                const std::vector<std::size_t>& parts = {}) {
  return clip_gradients(parameters_with(gradients), parts, options, factor);
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous().flatten();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

double joint_norm(const Tensors& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) sum += gradient.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

// Of every layout, one of them with gaps, and of more than one piece.
Tensors random_gradients() {
  at::manual_seed(1);
  return {at::randn({2000, 100}), at::randn({7}), at::randn({640, 30, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast),
          at::randn({300, 200}).t().slice(0, 0, 150)};
}

TEST(ClipGradients, ByNormOfTheWholeModelHasTheValuesOfTheFormula) {
  const Tensors gradients{at::tensor({3.0F, 0.0F}), at::tensor({4.0F})};
  const ClipReport report = clip(gradients, {.max_norm = 1.0});
  const double factor = 1.0 / (5.0 + 1e-6);
  EXPECT_THAT(values_of(gradients[0]), ElementsAre(DoubleNear(3 * factor, 1e-7), 0.0));
  EXPECT_THAT(values_of(gradients[1]), ElementsAre(DoubleNear(4 * factor, 1e-7)));
  EXPECT_EQ(report.norm_before, 5.0);
  EXPECT_NEAR(report.norm_after, 1.0, 1e-6);
  EXPECT_EQ(report.clipped, 1);
}

TEST(ClipGradients, ByLargestValueScalesAllByOneFactor) {
  const Tensors gradients{at::tensor({3.0F, -8.0F}), at::tensor({4.0F})};
  const ClipReport report = clip(gradients, {.max_norm = 2.0, .norm_type = GradNormType::inf});
  EXPECT_THAT(values_of(gradients[0]), ElementsAre(DoubleNear(0.75, 1e-6), DoubleNear(-2.0, 1e-6)));
  EXPECT_THAT(values_of(gradients[1]), ElementsAre(DoubleNear(1.0, 1e-6)));
  EXPECT_EQ(report.norm_before, 8.0);
  EXPECT_NEAR(report.norm_after, 2.0, 1e-6);
}

TEST(ClipGradients, ByPartLeavesAPartBelowItsLimitAlone) {
  const Tensors gradients{at::tensor({3.0F, 4.0F}), at::tensor({0.1F}), at::tensor({6.0F, 8.0F})};
  const ClipReport report = clip(gradients, {.max_norm = 6.0}, 1.0, {7, 2, 2});
  EXPECT_THAT(values_of(gradients[0]), ElementsAre(3.0, 4.0));
  const double factor = 6.0 / (std::sqrt(100.01) + 1e-6);
  EXPECT_THAT(values_of(gradients[1]), ElementsAre(DoubleNear(0.1 * factor, 1e-6)));
  EXPECT_THAT(values_of(gradients[2]), ElementsAre(DoubleNear(6 * factor, 1e-6), DoubleNear(8 * factor, 1e-6)));
  EXPECT_NEAR(report.norm_before, std::sqrt(125.01), 1e-6);
  EXPECT_NEAR(report.norm_after, std::sqrt(25.0 + 36.0), 1e-5);
  EXPECT_EQ(report.clipped, 1);
}

TEST(ClipGradients, ByValueSetsWhatIsBeyond) {
  const Tensors gradients{at::tensor({0.25F, -0.75F, 0.5F}), at::tensor({0.1F})};
  const ClipReport report = clip(gradients, {.value = 0.5});
  EXPECT_THAT(values_of(gradients[0]), ElementsAre(0.25, -0.5, 0.5));
  EXPECT_EQ(gradients[1].item<float>(), 0.1F);
  EXPECT_NEAR(report.norm_before, std::sqrt(0.875 + 0.01), 1e-7);
  EXPECT_NEAR(report.norm_after, std::sqrt(0.5625 + 0.01), 1e-7);
  EXPECT_EQ(report.clipped, 1);
}

TEST(ClipGradients, ByRatioLimitsEachRowByItsOwnWeights) {
  // Rows of weights with norms 5, 10 and 0; gradients with norms 5, 0.5 and 1.
  const Tensors weights{at::tensor({3.0F, 4.0F, 6.0F, 8.0F, 0.0F, 0.0F}).view({3, 2}), at::tensor({0.6F, 0.8F})};
  const Tensors gradients{at::tensor({4.0F, 3.0F, 0.3F, 0.4F, 1.0F, 0.0F}).view({3, 2}), at::tensor({0.0F, 2.0F})};
  const ClipReport report = clip_gradients(parameters_with(gradients, weights), {}, {.ratio = 0.1});
  EXPECT_THAT(values_of(gradients[0]),
              ElementsAre(DoubleNear(0.4, 1e-7), DoubleNear(0.3, 1e-7), 0.3F, 0.4F, DoubleNear(1e-4, 1e-10), 0.0));
  EXPECT_THAT(values_of(gradients[1]), ElementsAre(0.0, DoubleNear(0.1, 1e-7))) << "a vector is one unit";
  EXPECT_EQ(report.clipped, 3);
  EXPECT_NEAR(report.norm_before, std::sqrt(25 + 0.25 + 1 + 4), 1e-6);
  EXPECT_NEAR(report.norm_after, std::sqrt(0.25 + 0.25 + 1e-8 + 0.01), 1e-6);
}

TEST(ClipGradients, BringsAHugeGradientToTheNorm) {
  const Tensors gradients = random_gradients();
  gradients[0].mul_(1e6);
  const double before = joint_norm(gradients);
  EXPECT_NEAR(clip(gradients, {.max_norm = 1.0}).norm_before / before, 1.0, 1e-9);
  EXPECT_LE(joint_norm(gradients), 1.0 + 1e-6);
  EXPECT_GE(joint_norm(gradients), 1.0 - 1e-6);
}

TEST(ClipGradients, LeavesTheBitsBelowTheLimit) {
  const Tensors gradients = random_gradients(), copies = clones(gradients);
  for (const ClipOptions& options :
       {ClipOptions{.max_norm = 1e4}, ClipOptions{.value = 100.0}, ClipOptions{.ratio = 100.0},
        ClipOptions{.max_norm = 10.0, .norm_type = GradNormType::inf}, ClipOptions{}}) {
    const ClipReport report = clip(gradients, options);
    EXPECT_EQ(report.clipped, 0);
    EXPECT_NEAR(report.norm_after / report.norm_before, 1.0, 1e-9);
    for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(gradients[i].equal(copies[i]));
  }
}

TEST(ClipGradients, TellsOfWhatIsNotFiniteAndChangesNothing) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Tensors gradients = random_gradients();
    gradients[2].select(0, 3).select(0, 2).fill_(bad);
    const Tensors copies = clones(gradients);
    for (const ClipOptions& options :
         {ClipOptions{.max_norm = 1.0}, ClipOptions{.value = 0.1}, ClipOptions{.ratio = 0.01},
          ClipOptions{.max_norm = 1.0, .norm_type = GradNormType::inf}}) {
      const ClipReport report = clip(gradients, options, 0.5);
      EXPECT_FALSE(report.finite);
      EXPECT_FALSE(std::isfinite(report.norm_before));
      for (const std::size_t i : {0U, 1U, 3U}) EXPECT_TRUE(gradients[i].equal(copies[i]));
    }
  }
}

TEST(ClipGradients, TakesALossScaleOffOnTheWay) {
  for (const ClipOptions& options :
       {ClipOptions{.max_norm = 0.5}, ClipOptions{.max_norm = 1e6}, ClipOptions{.value = 0.5},
        ClipOptions{.value = 100.0}, ClipOptions{.ratio = 0.01}, ClipOptions{}}) {
    const Tensors gradients = random_gradients();
    Tensors scaled;
    for (const at::Tensor& gradient : gradients) scaled.push_back(gradient.mul(65536.0));
    const ClipReport wanted = clip(gradients, options), found = clip(scaled, options, 1.0 / 65536);
    EXPECT_NEAR(found.norm_before / wanted.norm_before, 1.0, 1e-9);
    EXPECT_NEAR(found.norm_after / wanted.norm_after, 1.0, 1e-6);
    EXPECT_EQ(found.clipped, wanted.clipped);
    for (std::size_t i = 0; i < scaled.size(); ++i) EXPECT_TRUE(scaled[i].allclose(gradients[i], 1e-6, 0));
  }
}

TEST(ClipGradients, AddsSquaresThatAreBeyondFloat32) {
  const Tensors gradients{at::full({100}, 1e30F)};
  EXPECT_NEAR(clip(gradients, {.max_norm = 5.0}, 1e-30).norm_before, 10.0, 1e-5);
  EXPECT_NEAR(joint_norm(gradients), 5.0, 1e-5);
}

TEST(ClipGradients, OfOtherTypesAndLayoutsAreClippedAsFloat32OnesAre) {
  for (const ClipOptions& options :
       {ClipOptions{.max_norm = 0.5}, ClipOptions{.value = 0.5}, ClipOptions{.ratio = 0.01},
        ClipOptions{.max_norm = 0.5, .norm_type = GradNormType::inf}}) {
    const Tensors gradients = random_gradients();
    Tensors wide, gappy;
    for (const at::Tensor& gradient : gradients) {
      wide.push_back(gradient.to(at::kDouble));
      std::vector<std::int64_t> shape = gradient.sizes().vec();
      shape.push_back(2);
      gappy.push_back(at::zeros(shape).select(-1, 0).copy_(gradient));
    }
    const ClipReport wanted = clip(gradients, options, 0.5);
    for (const Tensors& others : {wide, gappy}) {
      const ClipReport found = clip(others, options, 0.5);
      EXPECT_NEAR(found.norm_before / wanted.norm_before, 1.0, 1e-6);
      EXPECT_NEAR(found.norm_after / wanted.norm_after, 1.0, 1e-6);
      EXPECT_EQ(found.clipped, wanted.clipped);
      for (std::size_t i = 0; i < others.size(); ++i) {
        EXPECT_TRUE(others[i].to(at::kDouble).allclose(gradients[i].to(at::kDouble), 1e-6, 1e-9)) << i;
      }
    }
  }
}

TEST(ClipGradients, IsTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const ClipOptions& options :
       {ClipOptions{.max_norm = 0.5}, ClipOptions{.value = 0.5}, ClipOptions{.ratio = 0.01}}) {
    Tensors one = random_gradients();
    one.pop_back();  // LibTorch's operators add in an order that the threads decide.
    const Tensors three = clones(one);
    at::set_num_threads(1);
    const ClipReport wanted = clip(one, options);
    at::set_num_threads(3);
    const ClipReport found = clip(three, options);
    EXPECT_EQ(found.norm_before, wanted.norm_before);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(three[i].equal(one[i]));
  }
  at::set_num_threads(threads);
}

TEST(ClipGradients, CountsNoParameterWithoutAGradient) {
  EXPECT_EQ(clip_gradients({}, {}, {.max_norm = 1.0}).norm_before, 0.0);
  Tensors parameters = parameters_with({at::tensor({3.0F, 4.0F})});
  parameters.insert(parameters.begin(), at::ones({9}).requires_grad_());
  EXPECT_EQ(clip_gradients(parameters, {}, {.max_norm = 10.0}).norm_before, 5.0);
}

TEST(ClipGradients, RefusesTwoLimitsAndPartsOfOtherParameters) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { clip({}, {.max_norm = 1.0, .value = 1.0}); }),
              HasSubstr("wants one of max_norm, value and ratio, found 1, 1 and 0"));
  const Tensors parameters = parameters_with({at::ones({2})});
  const std::vector<std::size_t> parts{0, 1};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { clip_gradients(parameters, parts, {.max_norm = 1.0}); }),
              HasSubstr("wants a part for each of 1 parameters, found 2"));
}

TEST(ClipOptions, AreThoseOfATrainingRunWhichClipsOnce) {
  const ClipOptions options = clip_options({.max_grad_norm = 2.0, .grad_norm_type = GradNormType::inf});
  EXPECT_EQ(options.max_norm, 2.0);
  EXPECT_EQ(options.norm_type, GradNormType::inf);
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument, [] { clip_options({.max_grad_norm = 1.0, .clip_grad_ratio = 0.01}); }),
      "numerics: max_grad_norm and clip_grad_ratio are both set; wanted one of them: an update clips once");
}

TEST(ClipParts, AreTheModelTheGroupsOrTheModules) {
  const std::vector<std::string> names{"layer.0.weight", "layer.0.bias", "scale", "layer.1.weight", "shift"};
  const std::vector<std::size_t> groups{1, 1, 0, 0, 0};
  EXPECT_THAT(clip_parts(GradNormPer::model, names, groups), ElementsAre());
  EXPECT_THAT(clip_parts(GradNormPer::group, names, groups), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(clip_parts(GradNormPer::layer, names, groups), ElementsAre(0, 0, 1, 2, 1));
}

TEST(NormFactors, AreWhatClippingMultipliesWith) {
  const std::vector<std::size_t> parts{0, 0, 1, 1};
  const ClipOptions options{.max_norm = 0.5};
  const Tensors gradients = random_gradients(), copies = clones(gradients);
  const NormFactors found = norm_factors(parameters_with(gradients), parts, options, 0.25);
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(gradients[i].equal(copies[i]));
  const ClipReport wanted = clip(copies, options, 0.25, parts);
  EXPECT_EQ(found.report.norm_after, wanted.norm_after);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    EXPECT_TRUE(gradients[i].mul(found.factors[i]).allclose(copies[i], 1e-6, 0));
  }
}

// Each set of kernels against the plain one, on every length of a rest, with a value of interest in each place.
class GradientKernelSets : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { use_kernel_set(""); }

  // What the set makes of it, beside what the plain one does.
  template <class Call>
  static void compare(const Tensors& inputs, const Call& call) {
    for (const at::Tensor& input : inputs) {
      const at::Tensor found = input.clone(), wanted = input.clone();
      use_kernel_set(GetParam());
      const gradient_passes::Extent extent = call(found.mutable_data_ptr<float>(), found.numel());
      use_kernel_set("plain");
      const gradient_passes::Extent plain = call(wanted.mutable_data_ptr<float>(), wanted.numel());
      EXPECT_TRUE(found.equal(wanted)) << input.numel();
      EXPECT_NEAR(extent.squares, plain.squares, 1e-12 * plain.squares);
      EXPECT_EQ(extent.largest, plain.largest);
    }
  }

  static Tensors inputs() {
    at::manual_seed(4);
    Tensors tensors;
    for (std::int64_t count = 0; count <= 70; ++count) tensors.push_back(at::randn({count}).mul_(1e20));
    return tensors;
  }
};

TEST_P(GradientKernelSets, MeasureMultiplyAndClampAsThePlainOnesDo) {
  using gradient_passes::kernels;
  compare(inputs(), [](float* values, std::int64_t count) { return kernels().measure(values, count); });
  compare(inputs(), [](float* values, std::int64_t count) { return kernels().clamp(values, count, 1e-20F, 0.5F); });
  compare(inputs(), [](float* values, std::int64_t count) {
    kernels().multiply(values, count, 0.3F);
    return gradient_passes::Extent{};
  });
}

TEST_P(GradientKernelSets, FindInfinityAndNanInAnyPlace) {
  use_kernel_set(GetParam());
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::int64_t place = 0; place < 45; ++place) {
      const at::Tensor values = at::full({45}, std::numeric_limits<float>::max());
      const float* const data = values.const_data_ptr<float>();
      EXPECT_TRUE(std::isfinite(gradient_passes::kernels().measure(data, 45).squares));
      values.select(0, place).fill_(bad);
      EXPECT_FALSE(std::isfinite(gradient_passes::kernels().measure(data, 45).squares)) << place;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, GradientKernelSets, ::testing::ValuesIn(kernel_sets()),
                         [](const auto& of) { return of.param; });

}  // namespace
}  // namespace headrace
