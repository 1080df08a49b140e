#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/model.h>
#include <headrace/weights.h>

#include <algorithm>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "torch/model/detail/weight_translation.h"
#include "torch/tensor/safetensors.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

class Weights : public ::testing::Test {
 protected:
  fs::path file() const { return path_ / "w.safetensors"; }

  // Drawn, and with running statistics that are not those of a new network.
  static std::unique_ptr<Network> drawn(std::uint64_t seed, std::int64_t classes = 10) {
    at::manual_seed(seed);
    ModelOptions options;
    options.name = "strided_cnn";
    options.num_classes = classes;
    auto network = make_network(options, 3, 16, 16);
    network->forward(at::randn({4, 3, 16, 16}));
    return network;
  }

  static Named tensors_of(Network& network) {
    const ModelState state = network.state();
    Named tensors = state.parameters;
    tensors.insert(tensors.end(), state.buffers.begin(), state.buffers.end());
    return tensors;
  }

  static Named copies_of(Network& network) {
    Named tensors = tensors_of(network);
    for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
    return tensors;
  }

  static bool equal(const Named& a, const Named& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.first == y.first && x.second.equal(y.second); });
  }

  // What loading the file says; nothing may have changed.
  std::string refusal(const std::vector<std::string>& except = {}) const {
    const auto network = drawn(5);
    const Named before = copies_of(*network);
    try {
      load_weights(file(), network->state(), except);
    } catch (const Error& error) {
      EXPECT_TRUE(equal(before, tensors_of(*network)));
      EXPECT_THAT(error.what(), HasSubstr("w.safetensors"));
      return error.what();
    }
    return "accepted";
  }

  const TemporaryFolder temporary_;
  const fs::path path_ = temporary_.path();
};

TEST_F(Weights, ComeBackBitForBit) {
  const auto saved = drawn(1), loaded = drawn(2);
  save_weights(file(), saved->state(), {{"who", "test"}});
  load_weights(file(), loaded->state(), {});
  EXPECT_TRUE(equal(tensors_of(*saved), tensors_of(*loaded)));
  const auto metadata = read_safetensors_metadata(file());
  EXPECT_EQ(metadata.at("who"), "test");
  EXPECT_EQ(metadata.at("format"), "pt");
}

TEST_F(Weights, KeepTheLayoutAndTheTensorsOfTheModel) {
  const auto saved = drawn(1), loaded = drawn(2);
  save_weights(file(), saved->state(), {});
  const at::Tensor weight = loaded->state().parameters[3].second;  // 32 x 16 x 3 x 3.
  weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  load_weights(file(), loaded->state(), {});
  EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(weight.equal(saved->state().parameters[3].second));
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
}

TEST_F(Weights, AreWhatANetworkBeginsWithWhenItsOptionsNameAFile) {
  const auto saved = drawn(1);
  save_weights(file(), saved->state(), {});
  ModelOptions options;
  options.name = "strided_cnn";
  options.weights = file().string();
  const auto network = make_network(options, 3, 16, 16);
  EXPECT_TRUE(equal(tensors_of(*saved), tensors_of(*network)));

  options.num_classes = 7;
  options.weights_except = {"fc"};
  at::manual_seed(3);
  const auto other_head = make_network(options, 3, 16, 16);
  const Named drawn_alone = copies_of(*drawn(3, 7)), of_saved = tensors_of(*saved), found = tensors_of(*other_head);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool head = found[i].first == "fc.weight" || found[i].first == "fc.bias";
    EXPECT_TRUE(found[i].second.equal((head ? drawn_alone : of_saved)[i].second)) << found[i].first;
  }
}

TEST_F(Weights, ThatDoNotFitAreListedByKindAndName) {
  Named tensors = copies_of(*drawn(1));
  for (auto& [name, tensor] : tensors) {
    if (name == "fc.weight") tensor = at::zeros({1000, 96});
    if (name == "fc.bias") tensor = tensor.to(at::kHalf);
    if (name == "conv1.weight") name = "line\nbreak";
    if (name.rfind("bn2.", 0) == 0) name = "module." + name;
  }
  write_safetensors(file(), tensors, {});
  const std::string message = refusal();
  EXPECT_THAT(message,
              HasSubstr("of 26 tensors 5 missing (\"bn2.bias\", \"bn2.running_mean\", \"bn2.running_var\", ...)"));
  EXPECT_THAT(message, HasSubstr("6 surplus (\"module.bn2.num_batches_tracked\", \"line\\nbreak\", "));
  EXPECT_THAT(message, HasSubstr("2 of another shape or type ("));
  EXPECT_THAT(message, HasSubstr("\"fc.weight\": Float (1000, 96), wanted Float (10, 96)"));
  EXPECT_THAT(message, HasSubstr("\"fc.bias\": Half (10), wanted Float (10)"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_THAT(refusal({"fc"}), Not(HasSubstr("another shape")));
}

TEST_F(Weights, ExceptionsNameTensorsAndModulesButNoPartsOfNames) {
  Named tensors = copies_of(*drawn(1));
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                               [](const auto& named) { return named.first.rfind("bn1.", 0) == 0; }),
                tensors.end());
  tensors.emplace_back("classifier.weight", at::zeros({3}));
  write_safetensors(file(), tensors, {});
  EXPECT_EQ(refusal({"bn1", "classifier.weight"}), "accepted");
  EXPECT_EQ(refusal({"bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "classifier"}), "accepted");
  EXPECT_THAT(refusal({"bn", "classifier"}), HasSubstr("neither the network nor"));
  EXPECT_THAT(refusal({"bn1", "classifier", "fd"}), HasSubstr("has \"fd\""));
}

TEST_F(Weights, WithoutBatchCountsSetThemTo0) {
  Named tensors = copies_of(*drawn(1));
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                               [](const auto& named) { return named.first == "bn1.num_batches_tracked"; }),
                tensors.end());
  write_safetensors(file(), tensors, {});
  const auto network = drawn(2);
  load_weights(file(), network->state(), {});
  for (const auto& [name, tensor] : network->state().buffers) {
    if (tensor.scalar_type() != at::kLong) continue;
    EXPECT_EQ(tensor.item<std::int64_t>(), name == "bn1.num_batches_tracked" ? 0 : 1) << name;
  }
}

// The names are those of timm's state_dict of vit_tiny_patch16_224, without "blocks.1." to "blocks.11.".
TEST_F(Weights, OfTimmsVitAreTakenForTorchvisions) {
  ModelOptions options;
  options.name = "vit";
  options.vit.num_layers = 1;
  const Named tensors = [&] {
    at::manual_seed(4);
    const std::int64_t e = 192;
    return Named{{"cls_token", at::randn({1, 1, e})},
                 {"pos_embed", at::randn({1, 5, e})},
                 {"patch_embed.proj.weight", at::randn({e, 3, 16, 16})},
                 {"patch_embed.proj.bias", at::randn({e})},
                 {"blocks.0.norm1.weight", at::randn({e})},
                 {"blocks.0.norm1.bias", at::randn({e})},
                 {"blocks.0.attn.qkv.weight", at::randn({3 * e, e})},
                 {"blocks.0.attn.qkv.bias", at::randn({3 * e})},
                 {"blocks.0.attn.proj.weight", at::randn({e, e})},
                 {"blocks.0.attn.proj.bias", at::randn({e})},
                 {"blocks.0.norm2.weight", at::randn({e})},
                 {"blocks.0.norm2.bias", at::randn({e})},
                 {"blocks.0.mlp.fc1.weight", at::randn({4 * e, e})},
                 {"blocks.0.mlp.fc1.bias", at::randn({4 * e})},
                 {"blocks.0.mlp.fc2.weight", at::randn({e, 4 * e})},
                 {"blocks.0.mlp.fc2.bias", at::randn({e})},
                 {"norm.weight", at::randn({e})},
                 {"norm.bias", at::randn({e})},
                 {"head.weight", at::randn({10, e})},
                 {"head.bias", at::randn({10})}};
  }();
  write_safetensors(file(), tensors, {});
  const auto network = make_network(options, 3, 32, 32);
  load_weights(file(), network->state(), {});
  const Named found = tensors_of(*network);  // In the same order: that of both modules' registration.
  ASSERT_EQ(found.size(), tensors.size());
  for (std::size_t i = 0, j = 0; i < found.size(); ++i) {
    // torchvision registers the patches before the position embedding.
    j = i == 1 ? 2 : i == 2 ? 3 : i == 3 ? 1 : i;
    EXPECT_TRUE(found[i].second.equal(tensors[j].second)) << found[i].first << " from " << tensors[j].first;
  }
  Named surplus = tensors;
  surplus.emplace_back("fc_norm.weight", at::zeros({192}));
  write_safetensors(file(), surplus, {});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { load_weights(file(), network->state(), {}); }),
              HasSubstr("1 surplus (\"fc_norm.weight\")"));
  surplus.back().first = "class_token";  // Two tensors of one name: nothing is renamed.
  surplus.back().second = at::zeros({1, 1, 192});
  write_safetensors(file(), surplus, {});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { load_weights(file(), network->state(), {}); }),
              HasSubstr("missing (\"conv_proj.bias\""));
}

// A TorchScript module of timm's ViT has such a state.
TEST_F(Weights, UnderTimmsNamesFitAModelThatHasThemItself) {
  const Named tensors{{"cls_token", at::randn({1, 1, 8})},
                      {"patch_embed.proj.weight", at::randn({8, 3, 4, 4})},
                      {"norm.weight", at::randn({8})}};
  write_safetensors(file(), tensors, {});
  ModelState state;
  for (const auto& [name, tensor] : tensors) state.parameters.emplace_back(name, at::zeros_like(tensor));
  load_weights(file(), state, {});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(state.parameters[i].second.equal(tensors[i].second)) << tensors[i].first;
  }
}

// The names are some of those of timm's state_dict of mobilenetv3_small_100, with fewer blocks.
TEST(WeightTranslation, OfTimmsMobileNetNumbersBlocksAsTorchvisionDoes) {
  const std::vector<std::pair<std::string, std::string>> names{
      {"conv_stem.weight", "features.0.0.weight"},
      {"bn1.running_mean", "features.0.1.running_mean"},
      {"blocks.0.0.conv_dw.weight", "features.1.block.0.0.weight"},
      {"blocks.0.0.bn1.bias", "features.1.block.0.1.bias"},
      {"blocks.0.0.se.conv_reduce.weight", "features.1.block.1.fc1.weight"},
      {"blocks.0.0.se.conv_expand.bias", "features.1.block.1.fc2.bias"},
      {"blocks.0.0.conv_pw.weight", "features.1.block.2.0.weight"},
      {"blocks.0.0.bn2.num_batches_tracked", "features.1.block.2.1.num_batches_tracked"},
      {"blocks.1.0.conv_pw.weight", "features.2.block.0.0.weight"},
      {"blocks.1.0.bn1.weight", "features.2.block.0.1.weight"},
      {"blocks.1.0.conv_dw.weight", "features.2.block.1.0.weight"},
      {"blocks.1.0.bn2.weight", "features.2.block.1.1.weight"},
      {"blocks.1.0.conv_pwl.weight", "features.2.block.2.0.weight"},
      {"blocks.1.0.bn3.weight", "features.2.block.2.1.weight"},
      {"blocks.1.1.conv_pw.weight", "features.3.block.0.0.weight"},
      {"blocks.1.1.conv_dw.weight", "features.3.block.1.0.weight"},
      {"blocks.1.1.se.conv_reduce.weight", "features.3.block.2.fc1.weight"},
      {"blocks.1.1.conv_pwl.weight", "features.3.block.3.0.weight"},
      {"blocks.1.1.bn3.weight", "features.3.block.3.1.weight"},
      {"blocks.2.0.conv.weight", "features.4.0.weight"},
      {"blocks.2.0.bn1.running_var", "features.4.1.running_var"},
      {"conv_head.weight", "classifier.0.weight"},
      {"conv_head.bias", "classifier.0.bias"},
      {"classifier.weight", "classifier.3.weight"},
      {"blocks.x.conv.weight", "blocks.x.conv.weight"},
  };
  std::vector<SafetensorsEntry> entries;
  for (const auto& [theirs, ours] : names) entries.push_back({theirs, DType::f32, {8, 4, 1, 1}, 0, 0});
  const WeightTranslation translation(entries);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const SafetensorsEntry found = translation.translated(entries[i]);
    EXPECT_EQ(found.name, names[i].second);
    EXPECT_EQ(found.shape, (names[i].first == "conv_head.weight" ? Shape{8, 4} : Shape{8, 4, 1, 1})) << found.name;
  }
}

TEST(WeightTranslation, OfTimmsMobileNetMovesTheEpsilonIntoTheWeights) {
  const NamedTensors tensors{{"conv_stem.weight", at::randn({8, 3, 3, 3})},
                             {"bn1.weight", at::randn({8})},
                             {"bn1.running_var", at::randn({8}).square()},
                             {"conv_head.weight", at::randn({6, 8, 1, 1})},
                             {"conv_head.bias", at::randn({6})}};
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back(entry_of(name, tensor));
  const auto found = WeightTranslation(entries).translated(tensors);
  EXPECT_TRUE(found.at("classifier.0.weight").equal(tensors[3].second.squeeze()));
  const at::Tensor& variance = found.at("features.0.1.running_var");
  EXPECT_TRUE(variance.equal(tensors[2].second));
  const at::Tensor ours = found.at("features.0.1.weight").div(variance.add(1e-3).sqrt());
  const at::Tensor theirs = tensors[1].second.div(variance.add(1e-5).sqrt());
  EXPECT_LE(ours.sub(theirs).abs().max().item<double>(), 1e-6 * theirs.abs().max().item<double>());
}

// What torchvision's vit_b_16 was saved under before 0.14, and what has torchvision's names today.
TEST(WeightTranslation, OfAnOlderTorchvisionRenamesThePerceptronsOfAViT) {
  const std::string block = "encoder.layers.encoder_layer_0.";
  std::vector<SafetensorsEntry> entries;
  for (const char* name :
       {"mlp.linear_1.weight", "mlp.linear_1.bias", "mlp.linear_2.weight", "mlp.linear_2.bias", "ln_1.weight"}) {
    entries.push_back({block + name, DType::f32, {4}, 0, 0});
  }
  const WeightTranslation translation(entries);
  std::vector<std::string> found;
  for (const SafetensorsEntry& entry : entries) found.push_back(translation.translated(entry).name);
  EXPECT_THAT(found, ::testing::ElementsAre(block + "mlp.0.weight", block + "mlp.0.bias", block + "mlp.3.weight",
                                            block + "mlp.3.bias", block + "ln_1.weight"));
}

// 1 TiB as the header says and as the file system reports, of which not a byte is ever read.
TEST_F(Weights, ThatDoNotFitAreRefusedBeforeTheyTakeMemory) {
  const std::string header = R"({"huge":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})";
  const std::uint64_t length = header.size();
  write_file(file(), std::string(reinterpret_cast<const char*>(&length), 8) + header);
  fs::resize_file(file(), 8 + length + (1ULL << 40U));
  EXPECT_THAT(refusal(), HasSubstr("1 surplus (\"huge\")"));
}

TEST_F(Weights, NameAMissingFile) {
  EXPECT_THAT(refusal(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace headrace
