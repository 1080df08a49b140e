#include "torch/model/recomputation.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/model/network.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_allocations.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum ActivationCheckpointing;

constexpr int kSide = 32;

// One thread: these networks take hundreds of small steps, for which two threads that a neighbour slows down wait for
// each other.
class Recomputation : public ::testing::Test {
 protected:
  Recomputation() : threads_{at::get_num_threads()} { apply_compute_threads(1); }
  ~Recomputation() override { apply_compute_threads(threads_); }

 private:
  int threads_;
};

ModelOptions named(const std::string& name) {
  ModelOptions options;
  options.name = name;
  if (name == "vit") {
    options.vit = {.patch_size = 8, .num_layers = 3, .num_heads = 2, .hidden_dim = 32, .mlp_dim = 48};
    options.vit.dropout = options.vit.attention_dropout = 0.3;
  }
  return options;
}

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

std::unique_ptr<Network> seeded(ModelOptions options, ActivationCheckpointing kind, int side = kSide) {
  options.activation_checkpointing = kind;
  at::manual_seed(11);
  std::unique_ptr<Network> network = make_network(options, 3, side, side);
  const c10::AutoGradMode no_graph(false);
  for (const auto& [name, tensor] : network->state().parameters) {
    if (name == "heads.head.weight") tensor.normal_(0.0, 0.1);  // Drawn as 0, which would hide what lies before it.
  }
  return network;
}

enum class Arithmetic { float32, bf16 };

// Autocast for a scope; the backward is called outside of it, as PyTorch's documents say.
class Bf16 {
 public:
  explicit Bf16(Arithmetic arithmetic) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, arithmetic == Arithmetic::bf16);
  }
  ~Bf16() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Bf16(const Bf16&) = delete;
  Bf16& operator=(const Bf16&) = delete;
};

at::Tensor loss_of(Network& network, const at::Tensor& images, Arithmetic arithmetic = Arithmetic::float32) {
  const Bf16 scope(arithmetic);
  const at::Tensor labels = at::arange(images.size(0), at::kLong);
  return at::cross_entropy_loss(network.forward(images), labels);
}

void take_step(const ModelState& state) {
  const c10::AutoGradMode no_graph(false);
  for (const auto& [name, tensor] : state.parameters) {
    if (tensor.grad().defined()) tensor.sub_(tensor.grad(), 0.02);
    tensor.mutable_grad().reset();
  }
}

using Values = std::map<std::string, at::Tensor>;

// Losses and gradients of three steps, what they leave behind, and what the generator draws next.
Values trained(Network& network, at::MemoryFormat format, Arithmetic arithmetic) {
  const ModelState state = network.state();
  {
    const c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : state.parameters) {
      if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(format));
    }
  }
  at::manual_seed(12);
  Values values;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor images = at::randn({4, 3, kSide, kSide}).contiguous(format);
    const at::Tensor loss = loss_of(network, images, arithmetic);
    loss.backward();
    const std::string number = std::to_string(step);
    values["loss " + number] = loss.detach();
    for (const auto& [name, tensor] : state.parameters) {
      if (tensor.grad().defined()) values["gradient " + number + " of " + name] = tensor.grad();
    }
    take_step(state);
  }
  for (const auto& [name, tensor] : state.parameters) values[name] = tensor.detach();
  for (const auto& [name, tensor] : state.buffers) values[name] = tensor;
  values["next draw"] = at::rand({4});
  return values;
}

std::string text_of(const ModelOptions& options, ActivationCheckpointing kind) {
  return options.name + (options.stem == Stem::small ? " (small stem)" : "") +
         (kind == activations ? ", activations" : ", blocks");
}

void expect_bits(const Values& wanted, const Values& found, const std::string& of) {
  ASSERT_EQ(wanted.size(), found.size()) << of;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << of << ": " << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << of << ": " << name;
  }
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

// Bytes that the graph of a training step holds beside parameters, as LibTorch's allocator reports them.
double saved_bytes(const ModelOptions& options, ActivationCheckpointing kind, int side) {
  const auto network = seeded(options, kind, side);
  const at::Tensor images = at::randn({4, 3, side, side});
  const TensorAllocations counted;
  const at::Tensor loss = loss_of(*network, images);
  return static_cast<double>(TensorAllocations::bytes().value());
}

TEST_F(Recomputation, OfActivationsHalvesWhatIsSaved) {
  for (const char* name : {"resnet18", "resnet34", "mobilenet_v3_small", "mobilenet_v3_large"}) {
    EXPECT_LT(saved_bytes(named(name), activations, 64), 0.5 * saved_bytes(named(name), none, 64)) << name;
  }
  // Shortcuts with a convolution of their own, whose outputs no activation follows, leave somewhat more than half.
  EXPECT_LT(saved_bytes(named("resnet50"), activations, 64), 0.55 * saved_bytes(named("resnet50"), none, 64));
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

// Calls of each operator in this thread, while it lives.
class OperatorCounts {
 public:
  OperatorCounts() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(began).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounts() { at::removeCallback(handle_); }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& operation) {
    ++counts()[operation.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

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
  EXPECT_EQ(repeated(activations), (Counts{0, 20}));
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
