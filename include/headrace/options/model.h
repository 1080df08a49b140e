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

enum class Stem { imagenet, small };
constexpr auto choices(Stem) {
  return std::array{Choice<Stem>{Stem::imagenet, "imagenet"}, Choice<Stem>{Stem::small, "small"}};
}

struct ModelOptions {
  std::string name = "small_cnn";
  std::int64_t num_classes = 10;
  Stem stem = Stem::imagenet;                 // Of resnet18: a quarter of the height and width at once, or all of it.
  std::string weights{};                      // A safetensors file; empty: weights drawn from the seed.
  std::vector<std::string> weights_except{};  // Left as drawn: the head, when the classes are others.
  MemoryFormat memory_format = MemoryFormat::contiguous;  // Of 4-D parameters and inputs. Live knob.
  Fusion fusion = Fusion::none;                           // Less memory traffic, sums in another order. Live knob.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ModelOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "The network: small_cnn, mlp, resnet18, strided_cnn, or torchscript:FILE, a module saved by torch.jit.save. "
        "Loading a TorchScript file runs what is in it: use files that you trust.");
  visit("num_classes", o.num_classes, Range<std::int64_t>{2, 100000}, "Classes of the last layer.");
  visit("stem", o.stem,
        "How resnet18 begins: a 7x7 convolution of stride 2 and 3x3 max pooling (imagenet), or a 3x3 convolution of "
        "stride 1 without pooling (small) for images of about 32x32.");
  visit("weights", o.weights,
        "Safetensors file of parameters and buffers under the names of PyTorch's state_dict that the network begins "
        "with; empty: drawn from the seed.");
  visit("weights_except", o.weights_except,
        "Tensors or modules of them that model.weights does not set: \"fc\" leaves fc.weight and fc.bias as drawn.");
  visit("memory_format", o.memory_format,
        "Layout of images and convolution weights: contiguous (NCHW) or channels_last (NHWC).");
  visit("fusion", o.fusion,
        "Batch normalisation, ReLU and 2x2 max pooling as PyTorch's three operators (none) or as one native operator "
        "(norm_relu_pool); only small_cnn has them in this order.");
}

}  // namespace headrace
