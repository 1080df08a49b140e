#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fail.h"
#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputation.h"

namespace headrace {
namespace {

// A 1x1 convolution of 64 channels costs 64 multiplications for each number that it makes; those of later shortcuts
// cost up to 1,024, and free fewer bytes.
constexpr std::int64_t kChannelsOfCheapShortcut = 64;

// Two 3x3 convolutions (BasicBlock), or 1x1, 3x3 and 1x1 (Bottleneck, with the stride in the 3x3 one).
struct Block {
  std::vector<NormedConvolution> convolutions;
  std::optional<NormedConvolution> downsample;  // Of the shortcut, where the block changes the shape.

  Features operator()(const Features& input, const Mode& mode) const {
    Features sum = input;
    for (std::size_t i = 0; i < convolutions.size(); ++i) {
      sum = normed(convolutions[i], sum, mode);
      if (i + 1 < convolutions.size()) sum = relu_of(sum);
    }
    return relu_of(sum_of(sum, downsample ? shortcut(input, mode) : input));
  }

  Features shortcut(const Features& input, const Mode& mode) const {
    const bool is_cheap = downsample->convolution.weight.size(1) <= kChannelsOfCheapShortcut;
    return normed(*downsample, input, mode, is_cheap ? ConvolutionOutput::computed_again : ConvolutionOutput::kept);
  }

  void register_in(ModelState& state, const std::string& name) const {
    for (std::size_t i = 0; i < convolutions.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      convolutions[i].register_in(state, name + ".conv" + number, name + ".bn" + number);
    }
    if (downsample) downsample->register_in(state, name + ".downsample.0", name + ".downsample.1");
  }

  bool draws() const { return false; }

  Block with_own_statistics() const {
    Block result = *this;
    for (NormedConvolution& layer : result.convolutions) layer = layer.with_own_statistics();
    if (downsample) result.downsample = downsample->with_own_statistics();
    return result;
  }

  Block folded() const {
    Block result;
    for (const NormedConvolution& layer : convolutions) result.convolutions.push_back(layer.folded());
    if (downsample) result.downsample = downsample->folded();
    return result;
  }
};

std::string block_name(std::size_t stage, std::size_t block) {
  return "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
}

struct ResNet {
  Stem stem_kind;
  NormedConvolution stem;
  std::array<std::vector<Block>, 4> stages;
  Linear last;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    Features features = relu_of(normed(stem, {images}, mode, ConvolutionOutput::computed_again));
    if (stem_kind == Stem::imagenet) features = max_pool_of(features, {.kernel = 3, .stride = 2, .padding = 1});
    std::size_t number = 0;  // Through all stages.
    for (const std::vector<Block>& stage : stages) {
      for (const Block& block : stage) features = through_block(block, number++, features, mode);
    }
    return last(mean_of_images(features.tensor));
  }

  void register_in(ModelState& state) const {
    stem.register_in(state, "conv1", "bn1");
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t j = 0; j < stages[i].size(); ++j) stages[i][j].register_in(state, block_name(i, j));
    }
    last.register_in(state, "fc");
  }

  std::vector<std::string> block_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t j = 0; j < stages[i].size(); ++j) names.push_back(block_name(i, j));
    }
    return names;
  }

  ResNet folded() const {
    ResNet result{stem_kind, stem.folded(), {}, last.copied()};
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (const Block& block : stages[i]) result.stages[i].push_back(block.folded());
    }
    return result;
  }
};

struct Depth {
  std::string_view name;
  std::int64_t expansion;  // Of a block's last channels: 4 in a Bottleneck.
  std::array<int, 4> blocks;
};
constexpr std::array kDepths{Depth{"resnet18", 1, {2, 2, 2, 2}}, Depth{"resnet34", 1, {3, 4, 6, 3}},
                             Depth{"resnet50", 4, {3, 4, 6, 3}}};

struct BlockShape {
  std::int64_t inputs, width, expansion, stride;
};

// torchvision draws the shortcut's convolution before the block's own.
Block draw_block(const BlockShape& shape) {
  const std::int64_t inputs = shape.inputs, width = shape.width, outputs = width * shape.expansion;
  Block block;
  if (shape.stride != 1 || inputs != outputs) {
    block.downsample.emplace(
        ConvolutionShape{.inputs = inputs, .outputs = outputs, .kernel = 1, .stride = shape.stride, .padding = 0});
  }
  std::vector<NormedConvolution>& layers = block.convolutions;
  if (shape.expansion == 1) {
    layers.emplace_back(ConvolutionShape{.inputs = inputs, .outputs = width, .stride = shape.stride});
    layers.emplace_back(ConvolutionShape{.inputs = width, .outputs = outputs});
  } else {
    layers.emplace_back(ConvolutionShape{.inputs = inputs, .outputs = width, .kernel = 1, .padding = 0});
    layers.emplace_back(ConvolutionShape{.inputs = width, .outputs = width, .stride = shape.stride});
    layers.emplace_back(ConvolutionShape{.inputs = width, .outputs = outputs, .kernel = 1, .padding = 0});
  }
  return block;
}

std::array<std::vector<Block>, 4> draw_stages(const Depth& depth) {
  std::array<std::vector<Block>, 4> stages;
  std::int64_t inputs = 64, width = 64;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    for (int block = 0; block < depth.blocks[i]; ++block) {
      const std::int64_t stride = block == 0 && i != 0 ? 2 : 1;
      stages[i].push_back(
          draw_block({.inputs = inputs, .width = width, .expansion = depth.expansion, .stride = stride}));
      inputs = width * depth.expansion;
    }
    width *= 2;
  }
  return stages;
}

// kaiming_normal_(mode="fan_out", nonlinearity="relu"), which torchvision draws over what the layers drew themselves.
void draw_again(const NormedConvolution& layer) {
  const at::Tensor& weight = layer.convolution.weight;
  const auto fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
  weight.normal_(0.0, std::sqrt(2.0) / std::sqrt(fan_out));
}

// In the order of torchvision's modules(): a block's shortcut last.
void draw_again(const ResNet& network) {
  c10::AutoGradMode no_graph(false);
  draw_again(network.stem);
  for (const std::vector<Block>& stage : network.stages) {
    for (const Block& block : stage) {
      for (const NormedConvolution& layer : block.convolutions) draw_again(layer);
      if (block.downsample) draw_again(*block.downsample);
    }
  }
}

ConvolutionShape stem_shape(Stem stem, std::int64_t channels) {
  if (stem == Stem::small) return {.inputs = channels, .outputs = 64};
  return {.inputs = channels, .outputs = 64, .kernel = 7, .stride = 2, .padding = 3};
}

}  // namespace

std::unique_ptr<Network> make_resnet(const ModelOptions& options, const ImageShape& images) {
  const auto depth =
      std::find_if(kDepths.begin(), kDepths.end(), [&](const Depth& known) { return known.name == options.name; });
  HEADRACE_CHECK(depth != kDepths.end(), "no resnet has the name {}", options.name);
  // Braces draw in this order.
  ResNet network{options.stem, NormedConvolution(stem_shape(options.stem, images.channels)), draw_stages(*depth),
                 Linear(512 * depth->expansion, options.num_classes)};
  draw_again(network);
  return std::make_unique<LayeredNetwork<ResNet>>(std::move(network));
}

}  // namespace headrace
