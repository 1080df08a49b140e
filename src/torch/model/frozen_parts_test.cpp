#include "torch/model/frozen_parts.h"

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/model.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

ModelOptions frozen(const std::string& name, const std::vector<std::string>& parts) {
  ModelOptions options;
  options.name = name;
  options.num_classes = 4;
  options.stem = name.starts_with("resnet") ? Stem::small : Stem::imagenet;
  options.frozen = parts;
  return options;
}

std::unique_ptr<Network> made(const ModelOptions& options) {
  at::manual_seed(1);
  return make_network(options, 3, 8, 8);
}

Named copies(const Named& tensors) {
  Named result;
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, tensor.detach().clone());
  return result;
}

// Forward and backward of one batch, the same at each call.
at::Tensor step(Network& network) {
  at::manual_seed(2);
  const at::Tensor images = at::randn({4, 3, 8, 8}), labels = at::randint(4, {4}, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(network.forward(images), labels);
  loss.backward();
  return loss.detach();
}

TEST(FrozenParts, GetNoGradientsAndKeepTheirRunningStatistics) {
  for (const bool fuses : {false, true}) {
    ModelOptions options = frozen("small_cnn", {"conv1", "bn1"});
    if (fuses) options.fusion = Fusion::norm_relu_pool;
    const std::unique_ptr<Network> network = made(options);
    const ModelState state = network->state();
    const Named before = copies(state.buffers);
    step(*network);
    for (const auto& [name, parameter] : state.parameters) {
      const bool is_frozen = name.starts_with("conv1.") || name.starts_with("bn1.");
      EXPECT_EQ(parameter.requires_grad(), !is_frozen) << name;
      EXPECT_EQ(parameter.grad().defined(), !is_frozen) << name;
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(state.buffers[i].second.equal(before[i].second), before[i].first.starts_with("bn1."))
          << before[i].first;
    }
    EXPECT_EQ(frozen_text(state),
              fmt::format("4 of 12 parameters ({} of {} numbers) get no gradients and no updates; 1 "
                          "batch norm keeps its running statistics",
                          27 * 32 + 3 * 32, 27 * 32 + 3 * 32 + 32 * 9 * 64 + 3 * 64 + (64 * 4 + 1) * 128 + 129 * 4));
  }
}

// In the middle of a network gradients pass through what is frozen, with the bits of a network that keeps all
// activations.
TEST(FrozenParts, HaveTheSameBitsWithActivationsThatAreComputedAgain) {
  for (const auto& [name, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"resnet18", {"conv1", "bn1", "layer1"}},
           {"resnet18", {"layer2", "layer3.0.bn1", "layer4.*.conv2.weight"}},
           {"mobilenet_v3_small", {"features.0", "features.3"}}}) {
    std::vector<Named> gradients, buffers;
    std::vector<at::Tensor> losses;
    for (const auto kind :
         {ActivationCheckpointing::none, ActivationCheckpointing::activations, ActivationCheckpointing::blocks}) {
      ModelOptions options = frozen(name, parts);
      options.activation_checkpointing = kind;
      const std::unique_ptr<Network> network = made(options);
      losses.push_back(step(*network));
      Named found;
      for (const auto& [parameter_name, parameter] : network->state().parameters) {
        EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad()) << parameter_name;
        if (parameter.grad().defined()) found.emplace_back(parameter_name, parameter.grad());
      }
      gradients.push_back(found);
      buffers.push_back(copies(network->state().buffers));
    }
    for (std::size_t i = 1; i < losses.size(); ++i) {
      EXPECT_TRUE(losses[i].equal(losses[0])) << name;
      ASSERT_EQ(gradients[i].size(), gradients[0].size());
      for (std::size_t j = 0; j < gradients[0].size(); ++j) {
        EXPECT_TRUE(gradients[i][j].second.equal(gradients[0][j].second)) << name << " " << gradients[0][j].first;
      }
      for (std::size_t j = 0; j < buffers[0].size(); ++j) {
        EXPECT_TRUE(buffers[i][j].second.equal(buffers[0][j].second)) << name << " " << buffers[0][j].first;
      }
    }
  }
}

TEST(FrozenParts, RefusesANameOfNothingAndAModelWithoutAnythingToTrain) {
  const auto said = [](const ModelOptions& options) {
    return error_of(ErrorCode::invalid_argument, [&] { made(options); });
  };
  EXPECT_EQ(said(frozen("resnet18", {"layr1"})),
            "model: model.frozen: \"layr1\" names no parameter and no module, did you mean layer1?");
  EXPECT_THAT(said(frozen("small_cnn", {"backbone"})), HasSubstr("; the model has conv1, bn1, conv2, bn2, fc1, fc2"));
  EXPECT_THAT(said(frozen("small_cnn", {"*"})), HasSubstr("wanted a parameter that is left to train, found all 12"));
  EXPECT_THAT(said(frozen("torchscript:file.pt", {"conv1"})), HasSubstr("model.frozen is for headrace's own networks"));
  const std::unique_ptr<Network> network = made(frozen("small_cnn", {}));
  EXPECT_THROW(freeze(network->state(), {"conv1", "none"}), Error);
  for (const auto& [name, parameter] : network->state().parameters) EXPECT_TRUE(parameter.requires_grad()) << name;
}

// As torch.optim.swa_utils.update_bn: momentum None from a count of 0.
TEST(AverageStatistics, AreThePlainMeanOverTheBatchesOfThoseThatTrain) {
  const std::unique_ptr<Network> network = made(frozen("small_cnn", {"bn2"}));
  const auto pass = [&](std::uint64_t seed) {
    at::manual_seed(seed);
    network->forward(at::randn({4, 3, 8, 8}));
  };
  const ModelState state = network->state();
  std::map<std::string, at::Tensor> buffers(state.buffers.begin(), state.buffers.end());
  const Named frozen_before = copies({{"mean", buffers["bn2.running_mean"]}});
  const at::Tensor mean = at::zeros({32}), variance = at::zeros({32});
  for (const std::uint64_t seed : {5, 6, 7}) {  // Each batch's own: a mean over one batch.
    EXPECT_TRUE(network->average_statistics(true));
    pass(seed);
    mean.add_(buffers["bn1.running_mean"], 1.0 / 3);
    variance.add_(buffers["bn1.running_var"], 1.0 / 3);
  }
  buffers["bn1.running_mean"].fill_(std::numeric_limits<float>::infinity());  // Begins anew, whatever was there.
  EXPECT_TRUE(network->average_statistics(true));
  for (const std::uint64_t seed : {5, 6, 7}) pass(seed);
  EXPECT_EQ(buffers["bn1.num_batches_tracked"].item<std::int64_t>(), 3);
  EXPECT_LT(buffers["bn1.running_mean"].sub(mean).abs().max().item<double>(), 1e-6);
  EXPECT_LT(buffers["bn1.running_var"].sub(variance).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(buffers["bn2.running_mean"].equal(frozen_before[0].second));
  EXPECT_EQ(buffers["bn2.num_batches_tracked"].item<std::int64_t>(), 0);

  network->average_statistics(false);
  const at::Tensor before = buffers["bn1.running_mean"].clone();
  pass(5);
  const double moved = buffers["bn1.running_mean"].sub(before).abs().max().item<double>();
  EXPECT_GT(moved, 0);
  EXPECT_FALSE(made(frozen("mlp", {}))->average_statistics(true)) << "it has none";
}

}  // namespace
}  // namespace headrace
