#include <ATen/ops/max_pool2d.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"

namespace headrace {
namespace {

struct Block {
  NormedConvolution first, second;
  std::optional<NormedConvolution> downsample;  // Of the shortcut, where the block changes the shape.

  at::Tensor operator()(const at::Tensor& input, bool training) const {
    const at::Tensor sum = second(first(input, training).relu_(), training);
    sum.add_(downsample ? (*downsample)(input, training) : input);
    return sum.relu_();
  }

  void register_in(ModelState& state, const std::string& name) const {
    first.register_in(state, name + ".conv1", name + ".bn1");
    second.register_in(state, name + ".conv2", name + ".bn2");
    if (downsample) downsample->register_in(state, name + ".downsample.0", name + ".downsample.1");
  }

  Block folded() const {
    Block result{first.folded(), second.folded(), std::nullopt};
    if (downsample) result.downsample = downsample->folded();
    return result;
  }
};

struct ResNet {
  Stem stem_kind;
  NormedConvolution stem;
  std::array<std::vector<Block>, 4> stages;
  Linear last;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    at::Tensor features = stem(images, mode.training).relu_();
    if (stem_kind == Stem::imagenet) features = at::max_pool2d(features, 3, 2, 1);
    for (const std::vector<Block>& stage : stages) {
      for (const Block& block : stage) features = block(features, mode.training);
    }
    return last(mean_of_images(features));
  }

  void register_in(ModelState& state) const {
    stem.register_in(state, "conv1", "bn1");
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t j = 0; j < stages[i].size(); ++j) {
        stages[i][j].register_in(state, "layer" + std::to_string(i + 1) + "." + std::to_string(j));
      }
    }
    last.register_in(state, "fc");
  }

  ResNet folded() const {
    ResNet result{stem_kind, stem.folded(), {}, last.copied()};
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (const Block& block : stages[i]) result.stages[i].push_back(block.folded());
    }
    return result;
  }
};

// torchvision draws the shortcut's convolution before the block's own.
Block draw_block(std::int64_t inputs, std::int64_t outputs, std::int64_t stride) {
  std::optional<NormedConvolution> downsample;
  if (stride != 1 || inputs != outputs) {
    downsample.emplace(
        ConvolutionShape{.inputs = inputs, .outputs = outputs, .kernel = 1, .stride = stride, .padding = 0});
  }
  return {NormedConvolution({.inputs = inputs, .outputs = outputs, .stride = stride}),
          NormedConvolution({.inputs = outputs, .outputs = outputs}), std::move(downsample)};
}

std::array<std::vector<Block>, 4> draw_stages() {
  std::array<std::vector<Block>, 4> stages;
  std::int64_t inputs = 64, outputs = 64;
  for (std::vector<Block>& stage : stages) {
    stage.push_back(draw_block(inputs, outputs, inputs == outputs ? 1 : 2));
    stage.push_back(draw_block(outputs, outputs, 1));
    inputs = outputs;
    outputs *= 2;
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
      draw_again(block.first);
      draw_again(block.second);
      if (block.downsample) draw_again(*block.downsample);
    }
  }
}

ConvolutionShape stem_shape(Stem stem, std::int64_t channels) {
  if (stem == Stem::small) return {.inputs = channels, .outputs = 64};
  return {.inputs = channels, .outputs = 64, .kernel = 7, .stride = 2, .padding = 3};
}

}  // namespace

std::unique_ptr<Network> make_resnet18(const ModelOptions& options, const ImageShape& images) {
  // Braces draw in this order.
  ResNet network{options.stem, NormedConvolution(stem_shape(options.stem, images.channels)), draw_stages(),
                 Linear(512, options.num_classes)};
  draw_again(network);
  return std::make_unique<LayeredNetwork<ResNet>>(std::move(network));
}

}  // namespace headrace
