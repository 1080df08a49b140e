#include "torch/model/recomputation.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/model/recomputation_cases.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum ActivationCheckpointing;

class Recomputation : public OneThread {};

// A network, and what it can recompute.
struct Case {
  ModelOptions options;
  std::vector<ActivationCheckpointing> kinds;
};

std::vector<Case> every_case() {
  std::vector<Case> cases{{named("small_cnn"), {activations}},
                          {named("strided_cnn"), {activations}},
                          {named("resnet18"), {activations, blocks}},
                          {named("resnet18"), {activations, blocks}},
                          {named("resnet50"), {activations, blocks}},
                          {named("mobilenet_v3_small"), {activations, blocks}},
                          {named("vit"), {blocks}}};
  cases[3].options.stem = Stem::small;
  return cases;
}

std::string text_of(const ModelOptions& options, ActivationCheckpointing kind) {
  return options.name + (options.stem == Stem::small ? " (small stem)" : "") +
         (kind == activations ? ", activations" : ", blocks");
}

void expect_bits_of_the_plain_network(at::MemoryFormat format, Arithmetic arithmetic) {
  for (const Case& of : every_case()) {
    const Values wanted = trained(*seeded(of.options, none), format, arithmetic);
    EXPECT_TRUE(wanted.at("loss 2").isfinite().item<bool>());
    for (const ActivationCheckpointing kind : of.kinds) {
      expect_bits(wanted, trained(*seeded(of.options, kind), format, arithmetic), text_of(of.options, kind));
    }
  }
}

TEST_F(Recomputation, GivesTheBitsOfThePlainNetwork) {
  expect_bits_of_the_plain_network(at::MemoryFormat::Contiguous, Arithmetic::float32);
}

TEST_F(Recomputation, GivesTheBitsOfThePlainNetworkInChannelsLast) {
  expect_bits_of_the_plain_network(at::MemoryFormat::ChannelsLast, Arithmetic::float32);
}

TEST_F(Recomputation, GivesTheBitsOfThePlainNetworkUnderAutocast) {
  expect_bits_of_the_plain_network(at::MemoryFormat::ChannelsLast, Arithmetic::bf16);
}

TEST_F(Recomputation, OfEveryKthBlockGivesTheBitsOfThePlainNetwork) {
  for (const char* name : {"resnet18", "mobilenet_v3_small", "vit"}) {
    ModelOptions options = named(name);
    for (const Arithmetic arithmetic : {Arithmetic::float32, Arithmetic::bf16}) {
      options.checkpoint_every = 1;
      const Values wanted = trained(*seeded(options, none), at::MemoryFormat::ChannelsLast, arithmetic);
      options.checkpoint_every = 2;
      expect_bits(wanted, trained(*seeded(options, blocks), at::MemoryFormat::ChannelsLast, arithmetic),
                  text_of(options, blocks) + ", every second");
    }
  }
}

TEST_F(Recomputation, GivesTheBitsOfThePlainNetworkWherePartsAreFrozen) {
  for (const ActivationCheckpointing kind : {activations, blocks}) {
    Values results[2];
    for (const bool recomputes : {false, true}) {
      const auto network = seeded(named("resnet18"), recomputes ? kind : none);
      for (const auto& [name, tensor] : network->state().parameters) {
        const bool is_frozen = name.starts_with("layer1.0") || name.starts_with("layer2.0.conv") ||
                               name.starts_with("layer2.1.bn1") || name == "conv1.weight";
        tensor.requires_grad_(!is_frozen);
      }
      results[recomputes ? 1 : 0] = trained(*network, at::MemoryFormat::Contiguous, Arithmetic::float32);
    }
    expect_bits(results[0], results[1], text_of(named("resnet18"), kind));
  }
}

TEST_F(Recomputation, OfActivationsHalvesWhatIsSaved) {
  for (const char* name : {"resnet18", "resnet34", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large"}) {
    EXPECT_LT(saved_bytes(named(name), activations, 64), 0.5 * saved_bytes(named(name), none, 64)) << name;
  }
  for (const char* name : {"resnet18", "resnet34", "resnet50"}) {
    ModelOptions resnet = named(name);
    resnet.stem = Stem::small;
    EXPECT_LT(saved_bytes(resnet, activations, 32), 0.5 * saved_bytes(resnet, none, 32)) << name << ", small stem";
  }
}

TEST_F(Recomputation, OfBlocksSavesTheirInputs) {
  ModelOptions vit = named("vit");
  vit.vit.num_layers = 8;
  EXPECT_LT(saved_bytes(vit, blocks, 32), 0.3 * saved_bytes(vit, none, 32));
  ModelOptions resnet = named("resnet34");
  resnet.stem = Stem::small;
  EXPECT_LT(saved_bytes(resnet, blocks, 32), 0.4 * saved_bytes(resnet, none, 32));
}

TEST_F(Recomputation, OfEveryKthBlockSavesLessTheSmallerKIs) {
  ModelOptions vit = named("vit");
  vit.vit.num_layers = 8;
  for (ModelOptions options : {vit, named("resnet18"), named("mobilenet_v3_small")}) {
    double last = 0;
    for (const std::int64_t every : {1, 2, 4, 1000}) {  // The blocks of each lie among those of the one before it.
      options.checkpoint_every = every;
      const double saved = saved_bytes(options, blocks, 64);
      EXPECT_GT(saved, last) << options.name << ", every " << every;
      last = saved;
    }
    options.checkpoint_every = 1;
    EXPECT_GT(saved_bytes(options, none, 64), last) << options.name;
  }
}

struct Counts {
  int convolutions, norms;
  bool operator==(const Counts&) const = default;
};

// Of a backward. resnet18 has 20 of each; 16 lie on the main path of blocks and 3 on their shortcuts.
Counts repeated(ActivationCheckpointing kind, std::int64_t every = 1) {
  ModelOptions options = named("resnet18");
  options.checkpoint_every = every;
  const auto network = seeded(options, kind);
  const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
  const OperatorCounts counts;
  loss.backward();
  return {counts.of("aten::convolution"), counts.of("aten::native_batch_norm")};
}

TEST_F(Recomputation, ComputesEachOfItsPartsOnceMore) {
  EXPECT_EQ(repeated(none), (Counts{0, 0}));
  EXPECT_EQ(repeated(activations), (Counts{2, 20}));  // The stem's, and that of the first shortcut.
  EXPECT_EQ(repeated(blocks), (Counts{19, 19}));
  EXPECT_EQ(repeated(blocks, 2), (Counts{11, 11}));  // The first of each stage, of which three have a shortcut.
  EXPECT_EQ(repeated(blocks, 3), (Counts{7, 7}));
  EXPECT_EQ(repeated(blocks, 8), (Counts{2, 2}));
}

// The blocks whose backward reads a bias that the backward of the plain block does not: it refuses a changed one.
std::vector<std::string> recomputed_blocks(const ModelOptions& options, const std::vector<std::string>& biases) {
  const auto network = seeded(options, blocks);
  const ModelState state = network->state();
  std::vector<std::string> found;
  for (const std::string& bias : biases) {
    const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
    for (const auto& [name, tensor] : state.parameters) {
      const c10::AutoGradMode no_graph(false);
      if (name == bias) tensor.add_(1);
    }
    try {
      loss.backward();
    } catch (const c10::Error&) {
      found.push_back(bias);
    }
  }
  return found;
}

TEST_F(Recomputation, OfEveryKthBlockTakesTheFirstOfSoManyThroughAllStages) {
  ModelOptions resnet = named("resnet18");
  const std::vector<std::string> of_resnet{"layer1.0.bn1.bias", "layer1.1.bn1.bias", "layer2.0.bn1.bias",
                                           "layer2.1.bn1.bias", "layer3.0.bn1.bias", "layer3.1.bn1.bias",
                                           "layer4.0.bn1.bias", "layer4.1.bn1.bias"};
  EXPECT_EQ(recomputed_blocks(resnet, of_resnet), of_resnet);
  resnet.checkpoint_every = 3;
  EXPECT_THAT(recomputed_blocks(resnet, of_resnet),
              ElementsAre("layer1.0.bn1.bias", "layer2.1.bn1.bias", "layer4.0.bn1.bias"));

  ModelOptions vit = named("vit");
  vit.vit.num_layers = 5;
  vit.checkpoint_every = 2;
  std::vector<std::string> of_vit;
  for (int i = 0; i < 5; ++i) of_vit.push_back("encoder.layers.encoder_layer_" + std::to_string(i) + ".mlp.3.bias");
  EXPECT_THAT(recomputed_blocks(vit, of_vit), ElementsAre(of_vit[0], of_vit[2], of_vit[4]));

  ModelOptions mobilenet = named("mobilenet_v3_small");
  mobilenet.checkpoint_every = 4;
  std::vector<std::string> of_mobilenet;
  for (int i = 1; i <= 11; ++i) of_mobilenet.push_back("features." + std::to_string(i) + ".block.0.1.bias");
  EXPECT_THAT(recomputed_blocks(mobilenet, of_mobilenet),
              ElementsAre(of_mobilenet[0], of_mobilenet[4], of_mobilenet[8]));
}

TEST_F(Recomputation, LeavesEvaluationAsItIs) {
  for (const Case& of : every_case()) {
    for (const ActivationCheckpointing kind : of.kinds) {
      const auto plain = seeded(of.options, none), network = seeded(of.options, kind);
      plain->state().set_training(false);
      network->state().set_training(false);
      const at::Tensor images = at::randn({4, 3, kSide, kSide});
      EXPECT_TRUE(network->forward(images).equal(plain->forward(images))) << text_of(of.options, kind);
      const at::Tensor loss = loss_of(*network, images);
      const OperatorCounts counts;
      loss.backward();
      EXPECT_EQ(counts.of("aten::convolution") + counts.of("aten::native_batch_norm") + counts.of("aten::gelu"), 0)
          << text_of(of.options, kind);
    }
  }
}

TEST_F(Recomputation, GoesThroughARetainedGraphAsOftenAsAsked) {
  for (const ActivationCheckpointing kind : {activations, blocks}) {
    for (const char* name : {"resnet18", "mobilenet_v3_small"}) {
      const auto network = seeded(named(name), kind);
      const ModelState state = network->state();
      const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
      torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
      Values once;
      for (const auto& [of, tensor] : state.parameters) {
        once[of] = tensor.grad().clone();
        tensor.mutable_grad().reset();
      }
      torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
      for (const auto& [of, tensor] : state.parameters) {
        EXPECT_TRUE(tensor.grad().equal(once.at(of))) << name << ": " << of;
      }
      loss.backward();
      EXPECT_THROW(loss.backward(), c10::Error);
    }
  }
}

TEST_F(Recomputation, OutlivesItsNetwork) {
  for (const ActivationCheckpointing kind : {activations, blocks}) {
    auto network = seeded(named("resnet18"), kind);
    const ModelState state = network->state();
    const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
    network.reset();
    loss.backward();
    for (const auto& [name, tensor] : state.parameters) EXPECT_TRUE(tensor.grad().defined()) << name;
  }
}

TEST_F(Recomputation, RefusesWhatWasChangedInPlaceSinceTheForward) {
  for (const ActivationCheckpointing kind : {activations, blocks}) {
    const auto network = seeded(named("resnet18"), kind);
    const ModelState state = network->state();
    const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
    for (const auto& [name, tensor] : state.parameters) {
      const c10::AutoGradMode no_graph(false);
      if (name == "layer1.0.bn1.bias") tensor.add_(1);  // No node of the plain network reads it in its backward.
    }
    EXPECT_THROW(loss.backward(), c10::Error);
  }
}

TEST_F(Recomputation, OfBlocksHasNoSecondDerivative) {
  const auto network = seeded(named("resnet18"), blocks);
  const at::Tensor loss = loss_of(*network, at::randn({4, 3, kSide, kSide}));
  EXPECT_THAT(error_of(ErrorCode::unsupported,
                       [&] { torch::autograd::backward({loss}, {}, /*retain_graph=*/true, /*create_graph=*/true); }),
              HasSubstr("\"blocks\" has no second derivative"));
}

TEST_F(Recomputation, IsRefusedForNetworksThatHaveNothingOfTheKind) {
  const auto refusal = [](const std::string& name, ActivationCheckpointing kind) {
    return error_of(ErrorCode::invalid_argument, [&] { seeded(named(name), kind); });
  };
  EXPECT_THAT(refusal("mlp", activations),
              HasSubstr("model.activation_checkpointing = \"activations\" is for small_cnn, strided_cnn, resnet18, "
                        "resnet34, resnet50, mobilenet_v3_large, mobilenet_v3_small, found model.name = \"mlp\""));
  EXPECT_THAT(refusal("vit", activations), HasSubstr("found model.name = \"vit\""));
  EXPECT_THAT(refusal("small_cnn", blocks),
              HasSubstr("model.activation_checkpointing = \"blocks\" is for resnet18, resnet34, resnet50, "
                        "mobilenet_v3_large, mobilenet_v3_small, vit_b_16, vit, found model.name = \"small_cnn\""));
  EXPECT_THAT(refusal("torchscript:no_such_file.pt", blocks), HasSubstr("found model.name = \"torchscript:"));
}

TEST_F(Recomputation, RefusesEveryKthBlockWithoutBlocksAndLessThanOne) {
  const auto refusal = [](std::int64_t every, ActivationCheckpointing kind) {
    ModelOptions options = named("resnet18");
    options.checkpoint_every = every;
    return error_of(ErrorCode::invalid_argument, [&] { seeded(options, kind); });
  };
  EXPECT_THAT(refusal(2, none), HasSubstr("model.checkpoint_every = 2 is for model.activation_checkpointing = "
                                          "\"blocks\", found \"none\""));
  EXPECT_THAT(refusal(2, activations), HasSubstr("found \"activations\""));
  EXPECT_THAT(refusal(0, blocks), HasSubstr("model.checkpoint_every: wanted at least 1, found 0"));
}

}  // namespace
}  // namespace headrace
