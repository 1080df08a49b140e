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

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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

// Also of NaN, and of a zero with its sign.
bool has_bits_of(const at::Tensor& found, const at::Tensor& wanted) {
  return found.view(at::kInt).equal(wanted.view(at::kInt));
}

std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor._version());
  return versions;
}

double largest_of(const Tensors& gradients) {
  double largest = 0;
  for (const at::Tensor& gradient : gradients) largest = std::max(largest, gradient.abs().max().item<double>());
  return largest;
}

// Of every layout, the last one with gaps, and of more than one piece.
constexpr std::size_t kForKernels = 3;  // The last one is for LibTorch's operators.
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
  const Tensors gradients = random_gradients();
  gradients[1].select(0, 3).fill_(-0.0F);
  gradients[1].select(0, 4).fill_(std::numeric_limits<float>::denorm_min());
  const Tensors copies = clones(gradients);
  const std::vector<std::int64_t> versions = versions_of(gradients);
  constexpr double kJustAbove = 1 + 1e-5;
  double ratio = 0;  // Of the unit that comes nearest to its limit; weights are ones.
  for (const at::Tensor& gradient : gradients) {
    const std::int64_t units = gradient.dim() < 2 ? 1 : gradient.size(0);
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const at::Tensor values = units == 1 ? gradient : gradient.select(0, unit);
      ratio = std::max(ratio, joint_norm({values}) / std::sqrt(static_cast<double>(values.numel())));
    }
  }
  const double norm = joint_norm(gradients), largest = largest_of(gradients);
  const auto is_unchanged = [&](const ClipOptions& options, const std::vector<std::size_t>& parts = {}) {
    const ClipReport report = clip(gradients, options, 1.0, parts);
    EXPECT_EQ(report.clipped, 0);
    EXPECT_NEAR(report.norm_after / report.norm_before, 1.0, 1e-9);
    for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(has_bits_of(gradients[i], copies[i])) << i;
    for (std::size_t i = 0; i < kForKernels; ++i) EXPECT_EQ(gradients[i]._version(), versions[i]) << i;
  };
  is_unchanged({});
  is_unchanged({.max_norm = norm * kJustAbove});
  is_unchanged({.max_norm = largest * kJustAbove, .norm_type = GradNormType::inf});
  is_unchanged(
      {.max_norm = std::max(joint_norm({copies[0], copies[1]}), joint_norm({copies[2], copies[3]})) * kJustAbove},
      {4, 4, 0, 0});
  is_unchanged({.value = largest});
  is_unchanged({.ratio = ratio * kJustAbove});
}

TEST(ClipGradients, ALittleLowerLimitChangesThem) {
  const auto clips = [](const auto& limit) {
    const Tensors gradients = random_gradients(), copies = clones(gradients);
    const ClipReport report = clip(gradients, limit(gradients));
    EXPECT_EQ(report.clipped, 1);
    EXPECT_LT(report.norm_after, report.norm_before);
    const bool is_same = gradients[0].equal(copies[0]) && gradients[1].equal(copies[1]) &&
                         gradients[2].equal(copies[2]) && gradients[3].equal(copies[3]);
    EXPECT_FALSE(is_same);
  };
  constexpr double kJustBelow = 1 - 1e-5;
  clips([](const Tensors& gradients) { return ClipOptions{.max_norm = joint_norm(gradients) * kJustBelow}; });
  clips([](const Tensors& gradients) {
    return ClipOptions{.max_norm = largest_of(gradients) * kJustBelow, .norm_type = GradNormType::inf};
  });
  clips([](const Tensors& gradients) { return ClipOptions{.value = largest_of(gradients) * kJustBelow}; });
}

TEST(ClipGradients, CountsNothingThatIsAtItsLimit) {
  const auto counted = [](const at::Tensor& gradient, const ClipOptions& options) {
    return clip({gradient}, options).clipped;
  };
  // In double, 0.1 is below what float32 and bfloat16 make of it.
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const at::Tensor gradient = at::full({9}, 3.0, type);
    EXPECT_EQ(counted(gradient, {.value = 0.1}), 1);
    EXPECT_EQ(counted(gradient, {.value = 0.1}), 0) << "clipped before: " << type;
  }
  // The formula leaves 1e-6 to the limit.
  EXPECT_EQ(counted(at::full({1}, 0.9999995F), {.max_norm = 1.0}), 0);
  EXPECT_EQ(counted(at::full({1}, 1.0000005F), {.max_norm = 1.0}), 1);
}

TEST(ClipGradients, TellsAutogradOfWhatItChanged) {
  for (const ClipOptions& options :
       {ClipOptions{.max_norm = 1.0}, ClipOptions{.value = 1.0}, ClipOptions{.ratio = 0.5}, ClipOptions{}}) {
    const Tensors gradients = random_gradients();
    const std::vector<std::int64_t> versions = versions_of(gradients);
    clip(gradients, options, 0.5);
    for (std::size_t i = 0; i < kForKernels; ++i) EXPECT_GT(gradients[i]._version(), versions[i]) << i;
  }
}

TEST(ClipGradients, TellsOfWhatIsNotFiniteAndChangesNothing) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t place : {2U, 3U}) {  // What the kernels take, and what operators take.
      const Tensors gradients = random_gradients();
      gradients[place].select(0, 3).select(0, 2).fill_(bad);
      const Tensors copies = clones(gradients);
      for (const ClipOptions& options :
           {ClipOptions{.max_norm = 1.0}, ClipOptions{.value = 0.1}, ClipOptions{.ratio = 0.01},
            ClipOptions{.max_norm = 1.0, .norm_type = GradNormType::inf}}) {
        const ClipReport report = clip(gradients, options, 0.5);
        EXPECT_FALSE(report.finite);
        EXPECT_FALSE(std::isfinite(report.norm_before));
        for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(has_bits_of(gradients[i], copies[i])) << i;
      }
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

// Clipped first, they would be 65536 times as small: the limit is one of gradients without the scale.
TEST(ClipGradients, TakesTheLossScaleOffBeforeItClips) {
  const auto clipped = [](const ClipOptions& options) {
    const at::Tensor gradient = at::tensor({3.0F, -4.0F}).mul(65536.0);
    EXPECT_EQ(clip({gradient}, options, 1.0 / 65536).norm_before, options.norm_type == GradNormType::l2 ? 5.0 : 4.0);
    return values_of(gradient);
  };
  EXPECT_THAT(clipped({.max_norm = 1.0}), ElementsAre(DoubleNear(0.6, 1e-6), DoubleNear(-0.8, 1e-6)));
  EXPECT_THAT(clipped({.max_norm = 2.0, .norm_type = GradNormType::inf}),
              ElementsAre(DoubleNear(1.5, 1e-6), DoubleNear(-2.0, 1e-6)));
  EXPECT_THAT(clipped({.value = 3.5}), ElementsAre(3.0, -3.5));
  const double norm = 0.1 * std::sqrt(2.0);  // Of two weights of 1, by the ratio.
  EXPECT_THAT(clipped({.ratio = 0.1}), ElementsAre(DoubleNear(0.6 * norm, 1e-7), DoubleNear(-0.8 * norm, 1e-7)));
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

TEST(ClipGradients, RefusesLimitsThatAreNoneAndARatioOfLargestElements) {
  const auto refused = [](const ClipOptions& options) {
    const Tensors gradients{at::ones({2})};
    const std::string message = error_of(ErrorCode::invalid_argument, [&] { clip(gradients, options); });
    EXPECT_TRUE(gradients[0].equal(at::ones({2})));
    return message;
  };
  EXPECT_EQ(refused({.max_norm = -1.0}), "numerics: max_norm: wanted at least 0, found -1");
  EXPECT_EQ(refused({.max_norm = std::numeric_limits<double>::quiet_NaN()}),
            "numerics: max_norm: wanted at least 0, found nan");
  EXPECT_EQ(refused({.value = -0.5}), "numerics: value: wanted at least 0, found -0.5");
  EXPECT_EQ(refused({.ratio = -0.5}), "numerics: ratio: wanted at least 0, found -0.5");
  EXPECT_EQ(refused({.norm_type = GradNormType::inf, .ratio = 0.01}),
            "numerics: norm_type: wanted l2 with a ratio of 0.01, found inf");
  const Tensors parameters = parameters_with({at::ones({2})});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { norm_factors(parameters, {}, {.max_norm = -1.0}); }),
              HasSubstr("max_norm: wanted at least 0, found -1"));
}

TEST(ClipGradients, RefusesSparseAndComplexOnesAndChangesNothing) {
  const at::Tensor plain = at::full({2}, 3.0F), complex = at::full({2}, 3.0, at::kComplexFloat);
  const at::Tensor sparse = at::tensor({0.0F, 3.0F}).to_sparse();
  for (const auto& [bad, found] :
       {std::pair{complex, "Strided of ComplexFloat"}, std::pair{sparse, "Sparse of Float"}}) {
    Tensors parameters = parameters_with({plain});
    parameters.push_back(at::zeros({2}, bad.scalar_type()).requires_grad_());
    parameters.back().mutable_grad() = bad;
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { clip_gradients(parameters, {}, {.max_norm = 1.0}); }),
              std::string("numerics: parameter 1: wanted a dense gradient of real numbers to clip, found ") + found);
    EXPECT_TRUE(plain.eq(3.0).all().item<bool>());
  }
}

TEST(ClipOptions, AreThoseOfATrainingRunWhichClipsOnce) {
  const ClipOptions options = clip_options({.max_grad_norm = 2.0, .grad_norm_type = GradNormType::inf});
  EXPECT_EQ(options.max_norm, 2.0);
  EXPECT_EQ(options.norm_type, GradNormType::inf);
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument, [] { clip_options({.max_grad_norm = 1.0, .clip_grad_ratio = 0.01}); }),
      "numerics: max_grad_norm and clip_grad_ratio are both set; wanted one of them: an update clips once");
  const auto refused = [](const TrainOptions& given) {
    return error_of(ErrorCode::invalid_argument, [&] { clip_options(given); });
  };
  EXPECT_EQ(refused({.max_grad_norm = -1.0}), "numerics: max_grad_norm: wanted at least 0, found -1");
  EXPECT_EQ(refused({.clip_grad_value = -1.0}), "numerics: clip_grad_value: wanted at least 0, found -1");
  EXPECT_EQ(refused({.clip_grad_ratio = std::numeric_limits<double>::quiet_NaN()}),
            "numerics: clip_grad_ratio: wanted at least 0, found nan");
}

TEST(ClipParts, AreTheModelTheGroupsOrTheModules) {
  const std::vector<std::string> names{"layer.0.weight", "layer.0.bias", "scale", "layer.1.weight", "shift"};
  const std::vector<std::size_t> groups{1, 1, 0, 0, 0};
  EXPECT_THAT(clip_parts(GradNormPer::model, names, groups), ElementsAre());
  EXPECT_THAT(clip_parts(GradNormPer::group, names, groups), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(clip_parts(GradNormPer::layer, names, groups), ElementsAre(0, 0, 1, 2, 1));
}

// ---- On a device, without reading ----

TEST(ClipOnDevice, DoesWhatClipGradientsDoesAndTellsTheSame) {
  const std::vector<ClipOptions> all{{},
                                     {.max_norm = 1.0},
                                     {.max_norm = 1e6},
                                     {.max_norm = 2.0, .norm_type = GradNormType::inf},
                                     {.value = 0.5},
                                     {.norm_type = GradNormType::inf, .value = 0.5}};
  for (const ClipOptions& options : all) {
    for (const double factor : {1.0, 0.25}) {
      for (const auto& parts : {std::vector<std::size_t>{}, std::vector<std::size_t>{3, 1, 3, 1}}) {
        SCOPED_TRACE(::testing::Message()
                     << options.max_norm << " " << options.value << " " << factor << " " << parts.size());
        const Tensors ours = random_gradients(), theirs = clones(ours);
        const DeviceClip clipped = clip_on_device(parameters_with(ours), parts, options, factor);
        const ClipReport report = clip(theirs, options, factor, parts);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(ours[i].allclose(theirs[i], /*rtol=*/1e-6, /*atol=*/0)) << i;
        }
        const std::vector<double> figures = values_of(clipped.figures);
        ASSERT_EQ(figures.size(), 4U);
        const bool clips = options.max_norm > 0 || options.value > 0;
        const double norm = clips ? report.norm_before : largest_of(random_gradients()) * factor;
        EXPECT_NEAR(figures[0], norm, 1e-6 * norm);
        EXPECT_EQ(figures[1], static_cast<double>(report.clipped));
        EXPECT_EQ(figures[2], 0.0);
        EXPECT_EQ(figures[3], -1.0);
        EXPECT_EQ(clipped.figures.scalar_type(), at::kFloat);
        EXPECT_EQ(clipped.found_inf.dim(), 0);
        EXPECT_EQ(clipped.found_inf.item<double>(), 0.0);
        EXPECT_THAT(clipped.parameters, ElementsAre(0, 1, 2, 3));
      }
    }
  }
}

TEST(ClipOnDevice, KeepsTheBitsBelowTheLimit) {
  const Tensors gradients = random_gradients(), before = clones(gradients);
  clip_on_device(parameters_with(gradients), {}, {.max_norm = 1e6});
  for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(gradients[i].equal(before[i])) << i;
}

TEST(ClipOnDevice, FindsWhatIsNotFiniteAndWhereTheLastOfItIs) {
  for (const ClipOptions& options : {ClipOptions{}, ClipOptions{.max_norm = 1.0}, ClipOptions{.value = 0.5}}) {
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      Tensors parameters = parameters_with(random_gradients());
      parameters.insert(parameters.begin(), at::ones({3}).requires_grad_());  // Has no gradient.
      parameters[2].mutable_grad().select(0, 6).fill_(bad);
      parameters[3].mutable_grad().select(0, 5).select(0, 0).fill_(bad);
      const DeviceClip clipped = clip_on_device(parameters, {}, options);
      const std::vector<double> figures = values_of(clipped.figures);
      EXPECT_FALSE(std::isfinite(figures[0]));
      EXPECT_EQ(figures[2], 1.0);
      EXPECT_EQ(figures[3], 2.0) << "among the gradients";
      EXPECT_EQ(clipped.found_inf.item<double>(), 1.0);
      EXPECT_THAT(clipped.parameters, ElementsAre(1, 2, 3, 4));
    }
  }
}

TEST(ClipOnDevice, OfNoGradientAtAllThereIsNothingToTell) {
  for (const ClipOptions& options : {ClipOptions{}, ClipOptions{.max_norm = 1.0}, ClipOptions{.value = 0.5}}) {
    const Tensors parameters{at::ones({3}).requires_grad_(), at::ones({2}).requires_grad_()};
    const DeviceClip clipped = clip_on_device(parameters, {}, options);
    EXPECT_THAT(values_of(clipped.figures), ElementsAre(0.0, 0.0, 0.0, -1.0));
    EXPECT_EQ(clipped.found_inf.item<double>(), 0.0);
    EXPECT_TRUE(clipped.parameters.empty());
  }
}

TEST(ClipOnDevice, RefusesARatioAndWhatClipGradientsRefuses) {
  const Tensors parameters = parameters_with({at::ones({4})});
  const auto refused = [&](const ClipOptions& options, const std::vector<std::size_t>& parts = {}) {
    return error_of(ErrorCode::invalid_argument, [&] { clip_on_device(parameters, parts, options); });
  };
  EXPECT_THAT(refused({.ratio = 0.1}), HasSubstr("has no ratio"));
  EXPECT_THAT(refused({.max_norm = 1.0, .value = 1.0}), HasSubstr("wants one of max_norm, value and ratio"));
  EXPECT_THAT(refused({.max_norm = -1.0}), HasSubstr("max_norm: wanted at least 0"));
  EXPECT_THAT(refused({}, {0, 1}), HasSubstr("wants a part for each of 1 parameters, found 2"));
  parameters[0].mutable_grad() = at::ones({4}).to_sparse(1);
  EXPECT_THAT(refused({.max_norm = 1.0}), HasSubstr("wanted a dense gradient"));
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
