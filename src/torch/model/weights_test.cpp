#include "torch/model/weights.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <algorithm>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "torch/model/network.h"
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
