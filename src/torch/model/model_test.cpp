#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/model.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "torch/tensor/compute.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// As small as a ViT can be for these tests: patches of 4, which tile 28x28 and 32x32.
VitOptions small_vit() {
  return {.patch_size = 4, .num_layers = 2, .num_heads = 2, .hidden_dim = 32, .mlp_dim = 48};
}

// Every network once, and those with another stem or with dropout; vit_b_16, of 86 million parameters, is vit with
// other sizes and has tests of its own.
std::vector<ModelOptions> every_network() {
  std::vector<ModelOptions> all;
  const auto add = [&](const std::string& name) -> ModelOptions& {
    all.emplace_back();
    all.back().name = name;
    return all.back();
  };
  for (const std::string& name : network_names()) {
    if (name == "vit_b_16") continue;
    ModelOptions& options = add(name);
    if (name == "vit") options.vit = small_vit();
  }
  add("resnet18").stem = Stem::small;
  VitOptions& dropping = add("vit").vit;
  dropping = small_vit();
  dropping.dropout = dropping.attention_dropout = 0.3;
  return all;
}

std::unique_ptr<Network> seeded_as(const ModelOptions& options, std::uint64_t seed) {
  at::manual_seed(seed);
  return make_network(options, 1, 28, 28);
}

std::unique_ptr<Network> seeded(const std::string& name, std::uint64_t seed) {
  at::manual_seed(seed);
  ModelOptions options;
  options.name = name;
  return make_network(options, 1, 28, 28);
}

std::string refusal(const ModelOptions& options, int height) {
  return error_of(ErrorCode::invalid_argument, [&] { make_network(options, 1, height, height); });
}

TEST(Network, NamesItsTensorsLikeTheStateDictOfThePythonReference) {
  const auto network = seeded("small_cnn", 1);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : network->state().parameters) {
    names.push_back(name);
    EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf()) << name;
  }
  for (const auto& [name, tensor] : network->state().buffers) names.push_back(name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "conv2.weight",
                                     "conv2.bias", "bn2.weight", "bn2.bias", "fc1.weight", "fc1.bias", "fc2.weight",
                                     "fc2.bias", "bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
                                     "bn2.running_mean", "bn2.running_var", "bn2.num_batches_tracked"));
}

TEST(Network, IsTheSameBitsAfterTheSameSeed) {
  for (const ModelOptions& options : every_network()) {
    const auto a = seeded_as(options, 3), b = seeded_as(options, 3), c = seeded_as(options, 4);
    const auto of_a = a->state().parameters, of_b = b->state().parameters, of_c = c->state().parameters;
    bool differs = false;
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      EXPECT_TRUE(of_a[i].second.equal(of_b[i].second));
      differs = differs || !of_a[i].second.equal(of_c[i].second);
    }
    EXPECT_TRUE(differs) << options.name;
  }
}

TEST(Network, TakesAnyImageSizeChannelsAndClasses) {
  for (ModelOptions options : every_network()) {
    options.num_classes = 7;
    options.vit.patch_size = options.name == "vit" ? 3 : options.vit.patch_size;  // Of ViTs any that it divides.
    const auto network = make_network(options, 3, 33, 18);
    EXPECT_EQ(network->forward(at::randn({2, 3, 33, 18})).sizes(), (std::vector<std::int64_t>{2, 7})) << options.name;
  }
}

TEST(Network, UpdatesRunningStatisticsOnlyInTraining) {
  const auto network = seeded("small_cnn", 1);
  ModelState state = network->state();
  std::map<std::string, at::Tensor> buffers(state.buffers.begin(), state.buffers.end());
  const at::Tensor images = at::randn({4, 1, 28, 28});
  state.set_training(false);
  network->forward(images);
  EXPECT_EQ(buffers["bn1.num_batches_tracked"].item<std::int64_t>(), 0);
  EXPECT_EQ(buffers["bn1.running_mean"].abs().sum().item<float>(), 0.0F);
  state.set_training(true);
  network->forward(images);
  EXPECT_EQ(buffers["bn2.num_batches_tracked"].item<std::int64_t>(), 1);
  EXPECT_GT(buffers["bn2.running_mean"].abs().sum().item<float>(), 0.0F);
}

// The network pools before it clamps; its Python reference clamps before it pools.
TEST(Network, PoolingBeforeClampingGivesTheSameBitsAndGradients) {
  for (const bool channels_last : {false, true}) {
    const auto network = seeded("small_cnn", 2);
    ModelState state = network->state();
    std::map<std::string, at::Tensor> p(state.parameters.begin(), state.parameters.end());
    const at::Tensor labels = at::randint(10, {8}, at::kLong);
    at::Tensor images = at::randn({8, 1, 28, 28});
    if (channels_last) images = images.to(images.options(), false, true, at::MemoryFormat::ChannelsLast);

    at::cross_entropy_loss(network->forward(images), labels).backward();
    std::map<std::string, at::Tensor> gradients;
    for (const auto& [name, tensor] : state.parameters) {
      gradients[name] = tensor.grad().clone();
      tensor.mutable_grad().reset();
    }
    const auto block = [&](const at::Tensor& input, const std::string& i) {
      const at::Tensor convolved = at::conv2d(input, p["conv" + i + ".weight"], p["conv" + i + ".bias"], 1, 1);
      const at::Tensor normal =
          at::batch_norm(convolved, p["bn" + i + ".weight"], p["bn" + i + ".bias"], {}, {}, true, 0.1, 1e-5, true);
      return at::max_pool2d(at::relu(normal), 2);
    };
    const at::Tensor flat = block(block(images, "1"), "2").flatten(1);
    const at::Tensor hidden = at::relu(at::linear(flat, p["fc1.weight"], p["fc1.bias"]));
    at::cross_entropy_loss(at::linear(hidden, p["fc2.weight"], p["fc2.bias"]), labels).backward();
    for (const auto& [name, tensor] : state.parameters) EXPECT_TRUE(tensor.grad().equal(gradients[name])) << name;
  }
}

TEST(Network, FusionChangesNeitherTheStateNorWhatIsLearntBeyondRounding) {
  const int threads = at::get_num_threads();
  apply_compute_threads(1);  // Beside another program that computes, two would wait for each other in every operator.
  for (const ModelOptions& options : every_network()) {
    const std::string& name = options.name;
    std::map<std::string, at::Tensor> results[2];
    for (const Fusion fusion : {Fusion::none, Fusion::norm_relu_pool}) {
      const auto network = seeded_as(options, 5);
      network->set_fusion(fusion);
      auto& result = results[fusion == Fusion::norm_relu_pool];
      const at::Tensor images = at::randn({8, 1, 28, 28}), labels = at::randint(10, {8}, at::kLong);
      const at::Tensor loss = at::cross_entropy_loss(network->forward(images), labels);
      loss.backward();
      ModelState state = network->state();
      for (const auto& [of, tensor] : state.parameters) result["gradient of " + of] = tensor.grad();
      for (const auto& [of, tensor] : state.buffers) result[of] = tensor;
      result["loss"] = loss.detach();
      state.set_training(false);
      result["evaluated"] = network->forward(images).detach();
    }
    ASSERT_EQ(results[0].size(), results[1].size());
    double largest = 0;
    for (const auto& [of, tensor] : results[0]) {
      if (of.rfind("gradient", 0) == 0) largest = std::max(largest, tensor.abs().max().item<double>());
    }
    for (const auto& [of, tensor] : results[0]) {
      // The bias before a normalisation has a gradient of 0 but for rounding, so gradients are held to the largest.
      const double scale = of.rfind("gradient", 0) == 0 ? largest : tensor.abs().max().item<double>();
      EXPECT_LE((tensor - results[1].at(of)).abs().max().item<double>(), 2e-5 * scale) << name << ": " << of;
    }
  }
  apply_compute_threads(threads);
}

TEST(Network, NamesTheNearestOfAnUnknownName) {
  ModelOptions options;
  options.name = "smal_cnn";
  EXPECT_THAT(refusal(options, 28), HasSubstr("did you mean small_cnn?"));
  options.name = "vision_transformer";
  const std::string far = refusal(options, 28);
  EXPECT_THAT(far, HasSubstr("known: small_cnn, mlp, resnet18, strided_cnn, resnet34, resnet50, mobilenet_v3_large, "
                             "mobilenet_v3_small, vit_b_16, vit, torchscript:FILE"));
  EXPECT_THAT(far, ::testing::Not(HasSubstr("did you mean")));
  options.name = "small_cnn";
  EXPECT_THAT(refusal(options, 3), HasSubstr("3x3"));
}

TEST(Network, RefusesOptionsThatItDoesNotHave) {
  ModelOptions options;
  options.stem = Stem::small;
  EXPECT_THAT(refusal(options, 28),
              HasSubstr("model.stem is for resnet18, resnet34, resnet50, found model.name = \"small_cnn\""));
  options = {};
  options.name = "vit_b_16";
  options.dropout = 0.5;
  EXPECT_THAT(refusal(options, 32), HasSubstr("model.dropout is for mobilenet_v3_large, mobilenet_v3_small, found"));
  options.dropout = ModelOptions{}.dropout;
  options.vit.num_heads = 4;
  EXPECT_THAT(refusal(options, 32), HasSubstr("model.vit is for vit, found model.name = \"vit_b_16\""));
  options = {};
  options.weights_except = {"fc"};
  EXPECT_THAT(refusal(options, 28), HasSubstr("model.weights_except names fc, but model.weights names no file"));
}

TEST(Network, RefusesToNormaliseASingleValueInTraining) {
  const auto network = seeded("resnet18", 1);  // 28 pixels become 1.
  const at::Tensor images = at::randn({1, 1, 28, 28});
  try {
    network->forward(images);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("more than 1 value a channel, found a batch of (1, 512, 1, 1)"));
  }
  ModelState state = network->state();
  state.set_training(false);
  EXPECT_TRUE(network->forward(images).isfinite().all().item<bool>());
}

TEST(Network, RefusesSizesThatAViTCannotHave) {
  ModelOptions options;
  options.name = "vit";
  EXPECT_THAT(refusal(options, 28), HasSubstr("vit: wanted images whose sides are multiples of 16, found 28x28"));
  options.vit.num_heads = 5;
  EXPECT_THAT(refusal(options, 32), HasSubstr("num_heads to divide hidden_dim, found 5 and 192"));
  options.name = "vit_b_16";
  options.vit = {};
  EXPECT_THAT(refusal(options, 28), HasSubstr("vit_b_16: wanted images whose sides are multiples of 16"));
}

// In millions, of 1000 classes and 224 pixels, as torchvision's documents list them (num_params); of the default vit as
// timm lists vit_tiny_patch16_224.
TEST(Network, HasAsManyParametersAsItsReference) {
  const std::vector<std::pair<std::string, double>> published{
      {"resnet18", 11.69},          {"resnet34", 21.80}, {"resnet50", 25.56}, {"mobilenet_v3_large", 5.48},
      {"mobilenet_v3_small", 2.54}, {"vit_b_16", 86.57}, {"vit", 5.72}};
  for (const auto& [name, millions] : published) {
    ModelOptions options;
    options.name = name;
    options.num_classes = 1000;
    std::int64_t found = 0;
    for (const auto& [of, tensor] : make_network(options, 3, 224, 224)->state().parameters) found += tensor.numel();
    EXPECT_NEAR(static_cast<double>(found) * 1e-6, millions, 0.006) << name;
  }
}

// Standard deviations as torchvision's sources give them; bit equality after one seed is model_parity_test.py's.
TEST(Network, IsDrawnWithTorchvisionsDeviations) {
  const auto deviations = [](const std::string& name) {
    at::manual_seed(2);
    ModelOptions options;
    options.name = name;
    std::map<std::string, double> found;
    for (const auto& [of, tensor] : make_network(options, 3, 224, 224)->state().parameters) {
      found[of] = tensor.numel() < 2 ? 0.0 : tensor.detach().std(/*unbiased=*/true).item<double>();
    }
    return found;
  };
  auto vit = deviations("vit");
  EXPECT_NEAR(vit.at("encoder.pos_embedding"), 0.02, 4e-4);
  EXPECT_NEAR(vit.at("conv_proj.weight"), std::sqrt(1.0 / 768), 4e-4);
  EXPECT_NEAR(vit.at("encoder.layers.encoder_layer_0.self_attention.in_proj_weight"), std::sqrt(2.0 / (4 * 192)), 1e-3);
  EXPECT_NEAR(vit.at("encoder.layers.encoder_layer_11.mlp.0.weight"), std::sqrt(2.0 / (192 + 768)), 1e-3);
  EXPECT_EQ(vit.at("heads.head.weight"), 0.0);
  auto mobile = deviations("mobilenet_v3_small");
  EXPECT_NEAR(mobile.at("classifier.0.weight"), 0.01, 2e-4);
  EXPECT_NEAR(mobile.at("features.12.0.weight"), std::sqrt(2.0 / 576), 1e-3);
  EXPECT_EQ(mobile.at("features.1.block.1.fc1.bias"), 0.0);
  EXPECT_NEAR(deviations("resnet50").at("layer4.2.conv2.weight"), std::sqrt(2.0 / (512 * 9)), 2e-4);
}

TEST(Network, DropsInTrainingAlone) {
  for (const ModelOptions& options : every_network()) {
    if (options.name.rfind("mobilenet", 0) != 0 && options.vit.dropout == 0) continue;
    const auto network = seeded_as(options, 1);
    ModelState state = network->state();
    {
      c10::AutoGradMode no_graph(false);
      for (const auto& [name, tensor] : state.parameters) {
        if (name == "heads.head.weight") tensor.normal_();  // Drawn as 0.
      }
    }
    const at::Tensor images = at::randn({4, 1, 28, 28});
    EXPECT_FALSE(network->forward(images).equal(network->forward(images))) << options.name;
    state.set_training(false);
    EXPECT_TRUE(network->forward(images).equal(network->forward(images))) << options.name;
  }
}

TEST(Network, SmallStemKeepsFourTimesTheHeightAndWidth) {
  ModelOptions options;
  options.name = "resnet18";
  options.stem = Stem::small;
  const auto network = make_network(options, 3, 8, 8);  // 8 pixels become 1.
  EXPECT_EQ(network->state().parameters[0].second.sizes(), (std::vector<std::int64_t>{64, 3, 3, 3}));
  EXPECT_EQ(network->forward(at::randn({2, 3, 8, 8})).sizes(), (std::vector<std::int64_t>{2, 10}));
}

// A network after some training: running statistics, weights and biases of normalisations that are not 1 and 0.
std::unique_ptr<Network> used(const ModelOptions& options, at::MemoryFormat format) {
  at::manual_seed(8);
  auto network = make_network(options, 3, 32, 32);
  c10::AutoGradMode no_graph(false);
  for (const auto& [name, tensor] : network->state().parameters) {
    if (tensor.dim() == 1) tensor.add_(at::randn_like(tensor), 0.2);
    if (name == "heads.head.weight") tensor.normal_();  // Drawn as 0, which would hide what lies before it.
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(format));
  }
  for (int batch = 0; batch < 3; ++batch) network->forward(at::randn({8, 3, 32, 32}).mul(1.5).add(0.3));
  return network;
}

std::string name_of(const ModelOptions& options) {
  if (options.vit.dropout > 0) return options.name + "_dropout";
  return options.stem == Stem::small ? options.name + "_small_stem" : options.name;
}

// One network a case, by its place in every_network(), computed by one thread: under a sanitizer, and beside another
// program that computes, all of them in one case take longer than a case may.
class FrozenNetwork : public ::testing::TestWithParam<std::size_t> {
 protected:
  FrozenNetwork() : threads_{at::get_num_threads()} { apply_compute_threads(1); }
  ~FrozenNetwork() override { apply_compute_threads(threads_); }

  static ModelOptions options() { return every_network()[GetParam()]; }

 private:
  int threads_;
};

TEST_P(FrozenNetwork, IsEvaluationButForRounding) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const auto network = used(options(), format);
    network->state().set_training(false);
    const auto frozen = network->frozen();
    const at::Tensor images = at::randn({5, 3, 32, 32}).contiguous(format);
    const at::Tensor wanted = network->forward(images), found = frozen(images);
    EXPECT_FALSE(found.requires_grad());
    EXPECT_LE((found - wanted).abs().max().item<double>(), 1e-5 * wanted.abs().max().item<double>());
  }
}

TEST_P(FrozenNetwork, StaysAsItWasWhenTheNetworkIsTrainedOnAndGone) {
  auto network = used(options(), at::MemoryFormat::Contiguous);
  const at::Tensor images = at::randn({5, 3, 32, 32});
  const auto frozen = network->frozen();
  const at::Tensor before = frozen(images);
  EXPECT_TRUE(network->forward(images).requires_grad()) << "freezing ended training";
  {
    c10::AutoGradMode no_graph(false);
    const ModelState state = network->state();
    for (const auto& [name, tensor] : state.parameters) tensor.add_(1);
    for (const auto& [name, tensor] : state.buffers) tensor.add_(1);
  }
  network.reset();
  EXPECT_TRUE(frozen(images).equal(before));
}

INSTANTIATE_TEST_SUITE_P(Every, FrozenNetwork, ::testing::Range<std::size_t>(0, every_network().size()),
                         [](const auto& network) { return name_of(every_network()[network.param]); });

}  // namespace
}  // namespace headrace
