// Which network, what it begins with, and how its tensors lie in memory.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace {

enum class MemoryFormat { contiguous, channels_last };
constexpr auto choices(MemoryFormat) {
  return std::array{Choice<MemoryFormat>{MemoryFormat::contiguous, "contiguous"},
                    Choice<MemoryFormat>{MemoryFormat::channels_last, "channels_last"}};
}

enum class Fusion { none, norm_relu_pool };
constexpr auto choices(Fusion) {
  return std::array{Choice<Fusion>{Fusion::none, "none"}, Choice<Fusion>{Fusion::norm_relu_pool, "norm_relu_pool"}};
}

enum class ActivationCheckpointing { none, activations, blocks };
constexpr auto choices(ActivationCheckpointing) {
  return std::array{Choice<ActivationCheckpointing>{ActivationCheckpointing::none, "none"},
                    Choice<ActivationCheckpointing>{ActivationCheckpointing::activations, "activations"},
                    Choice<ActivationCheckpointing>{ActivationCheckpointing::blocks, "blocks"}};
}

enum class CheckpointOffload { none, host };
constexpr auto choices(CheckpointOffload) {
  return std::array{Choice<CheckpointOffload>{CheckpointOffload::none, "none"},
                    Choice<CheckpointOffload>{CheckpointOffload::host, "host"}};
}

enum class Stem { imagenet, small };
constexpr auto choices(Stem) {
  return std::array{Choice<Stem>{Stem::imagenet, "imagenet"}, Choice<Stem>{Stem::small, "small"}};
}

// The sizes of network "vit", under the names of torchvision's VisionTransformer; by default those of ViT-Ti/16.
struct VitOptions {
  std::int64_t patch_size = 16;    // Pixels a side. Half of it is four times the tokens.
  std::int64_t num_layers = 12;    // Blocks of attention and perceptron.
  std::int64_t num_heads = 3;      // Must divide hidden_dim.
  std::int64_t hidden_dim = 192;   // Numbers a token.
  std::int64_t mlp_dim = 768;      // Numbers in the hidden layer of a block's perceptron.
  double dropout = 0.0;            // Of tokens, behind the position embedding and each branch of a block.
  double attention_dropout = 0.0;  // Of attention weights. More than 0 rules out the fused kernel on a CPU.

  bool operator==(const VitOptions&) const = default;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, VitOptions>
void describe(Visitor& visit, Options& o) {
  visit("patch_size", o.patch_size, Range<std::int64_t>{1, 1024},
        "Pixels a side of the patches that become tokens; must divide height and width of the images.");
  visit("num_layers", o.num_layers, Range<std::int64_t>{1, 1000}, "Encoder blocks.");
  visit("num_heads", o.num_heads, Range<std::int64_t>{1, 1024}, "Attention heads; must divide hidden_dim.");
  visit("hidden_dim", o.hidden_dim, Range<std::int64_t>{1, 65536}, "Numbers a token.");
  visit("mlp_dim", o.mlp_dim, Range<std::int64_t>{1, 262144}, "Numbers in the hidden layer of a block's perceptron.");
  visit("dropout", o.dropout, Range<double>{0.0, 1.0},
        "Probability that a number of a token is zeroed in training, where torchvision's VisionTransformer does it.");
  visit("attention_dropout", o.attention_dropout, Range<double>{0.0, 1.0},
        "Probability that an attention weight is zeroed in training.");
}

struct ModelOptions {
  std::string name = "small_cnn";
  std::int64_t num_classes = 10;
  Stem stem = Stem::imagenet;                 // Of resnets: a quarter of the height and width at once, or all of it.
  double dropout = 0.2;                       // Of mobilenets, before the last layer.
  VitOptions vit{};                           // Of vit alone; vit_b_16 has its own.
  std::string weights{};                      // Safetensors or .pt; empty: weights drawn from the seed.
  std::vector<std::string> weights_except{};  // Left as drawn: the head, when the classes are others.
  std::vector<std::string> frozen{};          // Parts that get no gradients and no updates; headrace's own networks.
  MemoryFormat memory_format = MemoryFormat::contiguous;  // Of 4-D parameters and inputs. Live knob.
  Fusion fusion = Fusion::none;                           // Less memory traffic, sums in another order. Live knob.
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;  // Time for memory; the same bits.
  std::int64_t checkpoint_every = 1;             // With blocks: of so many the first is computed again.
  std::vector<std::string> checkpoint_blocks{};  // With blocks: these alone; empty: all.
  double checkpoint_budget_mib = 0.0;            // With blocks: as many as this asks for; 0: no budget.
  CheckpointOffload checkpoint_offload = CheckpointOffload::none;  // Of the inputs of such blocks, on a GPU.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ModelOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "The network: small_cnn, mlp, strided_cnn; torchvision's resnet18, resnet34, resnet50, mobilenet_v3_large, "
        "mobilenet_v3_small and vit_b_16; vit, torchvision's VisionTransformer in the sizes of model.vit; or "
        "torchscript:FILE, a module saved by torch.jit.save. Loading a TorchScript file runs what is in it: use files "
        "that you trust.");
  visit("num_classes", o.num_classes, Range<std::int64_t>{2, 100000}, "Classes of the last layer.");
  visit("stem", o.stem,
        "How a resnet begins: a 7x7 convolution of stride 2 and 3x3 max pooling (imagenet), or a 3x3 convolution of "
        "stride 1 without pooling (small) for images of about 32x32.");
  visit("dropout", o.dropout, Range<double>{0.0, 1.0},
        "Probability that a number is zeroed in training before the last layer of mobilenet_v3_large and "
        "mobilenet_v3_small.");
  visit("vit", o.vit, "");
  visit(
      "weights", o.weights,
      "Safetensors file, or .pt, .pth, .bin or .ckpt file of torch.save, of parameters and buffers that the network "
      "begins with, under the names of PyTorch's state_dict, or under timm's for resnets, MobileNetV3 and ViT; empty: "
      "drawn from the seed.");
  visit("weights_except", o.weights_except,
        "Tensors or modules of them, by the network's own names, that model.weights does not set: \"fc\" leaves "
        "fc.weight and fc.bias as drawn.");
  visit(
      "frozen", o.frozen,
      "Parameters, or modules of them, by the network's own names, that do not train: no gradients, no updates and no "
      "weight decay, and batch normalisations among them keep their running statistics, as requires_grad_(False) and "
      "eval() on the part do in PyTorch; dropout goes on. * stands for any characters. Not of TorchScript.");
  visit("memory_format", o.memory_format,
        "Layout of images and convolution weights: contiguous (NCHW) or channels_last (NHWC).");
  visit("fusion", o.fusion,
        "Batch normalisation, ReLU and 2x2 max pooling as PyTorch's three operators (none) or as one native operator "
        "(norm_relu_pool); only small_cnn has them in this order.");
  visit(
      "activation_checkpointing", o.activation_checkpointing,
      "What a training step computes again in its backward instead of keeping it, with the same bits: nothing (none); "
      "batch normalisations, activations and the first convolution, more than half of what is kept, of networks with "
      "convolutions (activations); or all that lies within blocks of resnets, MobileNetV3 and ViT, for up to another "
      "forward (blocks).");
  visit("checkpoint_every", o.checkpoint_every, Range<std::int64_t>{1, 1000},
        "Of so many blocks one after the other the first is computed again in the backward: 1 is all of them, 2 every "
        "second. More than 1 goes with model.activation_checkpointing = blocks alone.");
  visit("checkpoint_blocks", o.checkpoint_blocks,
        "With model.activation_checkpointing = blocks, the blocks that are computed again, by the names that their "
        "tensors begin with: \"layer4.0\", or \"layer4\" for all blocks in it; empty: all blocks. Excludes "
        "model.checkpoint_every and model.checkpoint_budget_mib.");
  visit("checkpoint_budget_mib", o.checkpoint_budget_mib, Range<double>{0.0, 16777216.0},
        "With model.activation_checkpointing = blocks, MiB that the network may keep for the backward at once, "
        "parameters and images aside: the fewest blocks are computed again that this asks for, by what the first "
        "training step kept; 0: no budget. Excludes model.checkpoint_every and model.checkpoint_blocks.");
  visit("checkpoint_offload", o.checkpoint_offload,
        "With model.activation_checkpointing = blocks, where the inputs of blocks that are computed again lie until "
        "the backward: as they are (none), or in page-locked memory of the host (host), on a CUDA device alone.");
}

}  // namespace headrace
