#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/hardsigmoid.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputation.h"

namespace headrace {
namespace {

constexpr BatchNormSettings kNorm{.epsilon = 1e-3, .momentum = 0.01};
constexpr std::int64_t kStemChannels = 16;

enum class Activation { relu, hard_swish };

Features activated(const Features& input, Activation activation) {
  return activation == Activation::relu ? relu_of(input) : hard_swish_of(input);
}

// Scales each channel by a function of all channels' means (Hu et al. 2018, "Squeeze-and-Excitation Networks").
struct SqueezeExcitation {
  Convolution reduce, expand;  // 1x1, with biases.

  Features operator()(const Features& input) const {
    const at::Tensor squeezed = reduce(at::adaptive_avg_pool2d(input.tensor, {1, 1}));
    return scaled(at::hardsigmoid(expand(squeezed.relu_())), input);
  }

  void register_in(ModelState& state, const std::string& name) const {
    reduce.register_in(state, name + ".fc1");
    expand.register_in(state, name + ".fc2");
  }

  SqueezeExcitation copied() const { return {reduce.copied(), expand.copied()}; }
};

struct InvertedResidual {
  std::optional<NormedConvolution> expand;  // 1x1; nothing where the block is no wider than its input.
  NormedConvolution depthwise;
  std::optional<SqueezeExcitation> squeeze;
  NormedConvolution project;  // 1x1, without activation.
  Activation activation;
  bool has_shortcut;

  Features operator()(const Features& input, const Mode& mode) const {
    Features features = expand ? activated(normed(*expand, input, mode), activation) : input;
    features = activated(normed(depthwise, features, mode), activation);
    if (squeeze) features = (*squeeze)(features);
    features = normed(project, features, mode);
    return has_shortcut ? sum_of(features, input) : features;
  }

  void register_in(ModelState& state, const std::string& name) const {
    int place = 0;
    const auto next = [&] { return name + ".block." + std::to_string(place++); };
    const auto normed = [&](const NormedConvolution& layer) {
      const std::string module = next();
      layer.register_in(state, module + ".0", module + ".1");
    };
    if (expand) normed(*expand);
    normed(depthwise);
    if (squeeze) squeeze->register_in(state, next());
    normed(project);
  }

  bool draws() const { return false; }

  InvertedResidual with_own_statistics() const {
    InvertedResidual result = *this;
    if (expand) result.expand = expand->with_own_statistics();
    result.depthwise = depthwise.with_own_statistics();
    result.project = project.with_own_statistics();
    return result;
  }

  InvertedResidual folded() const {
    InvertedResidual result = *this;
    if (expand) result.expand = expand->folded();
    result.depthwise = depthwise.folded();
    if (squeeze) result.squeeze = squeeze->copied();
    result.project = project.folded();
    return result;
  }
};

// The first block is features.1, behind the stem.
std::string block_name(std::size_t block) {
  return "features." + std::to_string(block + 1);
}

struct MobileNetV3 {
  NormedConvolution stem;
  std::vector<InvertedResidual> blocks;
  NormedConvolution top;  // 1x1.
  Linear hidden, last;
  double dropout;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    Features features =
        activated(normed(stem, {images}, mode, ConvolutionOutput::computed_again), Activation::hard_swish);
    for (std::size_t i = 0; i < blocks.size(); ++i) features = through_block(blocks[i], i, features, mode);
    features = activated(normed(top, features, mode), Activation::hard_swish);
    at::Tensor means = activated({hidden(mean_of_images(features.tensor))}, Activation::hard_swish).tensor;
    return last(at::dropout_(means, dropout, mode.training));
  }

  void register_in(ModelState& state) const {
    stem.register_in(state, "features.0.0", "features.0.1");
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].register_in(state, block_name(i));
    const std::string name = block_name(blocks.size());
    top.register_in(state, name + ".0", name + ".1");
    hidden.register_in(state, "classifier.0");
    last.register_in(state, "classifier.3");
  }

  std::vector<std::string> block_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < blocks.size(); ++i) names.push_back(block_name(i));
    return names;
  }

  MobileNetV3 folded() const {
    MobileNetV3 result{stem.folded(), {}, top.folded(), hidden.copied(), last.copied(), dropout};
    for (const InvertedResidual& block : blocks) result.blocks.push_back(block.folded());
    return result;
  }
};

enum class Squeeze { no, yes };

struct BlockShape {
  std::int64_t kernel, width, outputs;  // Width: channels of the depthwise convolution.
  Squeeze squeeze;
  Activation activation;
  std::int64_t stride;
};

using enum Activation;

// Tables 1 and 2 of Howard et al. 2019, "Searching for MobileNetV3".
const std::vector<BlockShape>& large_blocks() {
  static const std::vector<BlockShape> blocks{
      {3, 16, 16, Squeeze::no, relu, 1},          {3, 64, 24, Squeeze::no, relu, 2},
      {3, 72, 24, Squeeze::no, relu, 1},          {5, 72, 40, Squeeze::yes, relu, 2},
      {5, 120, 40, Squeeze::yes, relu, 1},        {5, 120, 40, Squeeze::yes, relu, 1},
      {3, 240, 80, Squeeze::no, hard_swish, 2},   {3, 200, 80, Squeeze::no, hard_swish, 1},
      {3, 184, 80, Squeeze::no, hard_swish, 1},   {3, 184, 80, Squeeze::no, hard_swish, 1},
      {3, 480, 112, Squeeze::yes, hard_swish, 1}, {3, 672, 112, Squeeze::yes, hard_swish, 1},
      {5, 672, 160, Squeeze::yes, hard_swish, 2}, {5, 960, 160, Squeeze::yes, hard_swish, 1},
      {5, 960, 160, Squeeze::yes, hard_swish, 1},
  };
  return blocks;
}

const std::vector<BlockShape>& small_blocks() {
  static const std::vector<BlockShape> blocks{
      {3, 16, 16, Squeeze::yes, relu, 2},        {3, 72, 24, Squeeze::no, relu, 2},
      {3, 88, 24, Squeeze::no, relu, 1},         {5, 96, 40, Squeeze::yes, hard_swish, 2},
      {5, 240, 40, Squeeze::yes, hard_swish, 1}, {5, 240, 40, Squeeze::yes, hard_swish, 1},
      {5, 120, 48, Squeeze::yes, hard_swish, 1}, {5, 144, 48, Squeeze::yes, hard_swish, 1},
      {5, 288, 96, Squeeze::yes, hard_swish, 2}, {5, 576, 96, Squeeze::yes, hard_swish, 1},
      {5, 576, 96, Squeeze::yes, hard_swish, 1},
  };
  return blocks;
}

// The nearest multiple of 8, but at least 8 and not below 0.9 times the number: as torchvision rounds channels.
std::int64_t rounded_channels(std::int64_t channels) {
  const std::int64_t nearest = std::max<std::int64_t>(8, (channels + 4) / 8 * 8);
  return 10 * nearest < 9 * channels ? nearest + 8 : nearest;
}

std::optional<NormedConvolution> drawn_expansion(std::int64_t inputs, std::int64_t width) {
  if (inputs == width) return std::nullopt;
  return NormedConvolution({.inputs = inputs, .outputs = width, .kernel = 1, .padding = 0}, kNorm);
}

std::optional<SqueezeExcitation> drawn_squeeze(const BlockShape& shape) {
  if (shape.squeeze == Squeeze::no) return std::nullopt;
  const std::int64_t channels = shape.width, squeezed = rounded_channels(channels / 4);
  return SqueezeExcitation{
      Convolution({.inputs = channels, .outputs = squeezed, .kernel = 1, .padding = 0, .bias = true}),
      Convolution({.inputs = squeezed, .outputs = channels, .kernel = 1, .padding = 0, .bias = true})};
}

// Braces draw in this order.
InvertedResidual draw_block(std::int64_t inputs, const BlockShape& shape) {
  return {drawn_expansion(inputs, shape.width),
          NormedConvolution({.inputs = shape.width,
                             .outputs = shape.width,
                             .kernel = shape.kernel,
                             .stride = shape.stride,
                             .padding = (shape.kernel - 1) / 2,
                             .groups = shape.width},
                            kNorm),
          drawn_squeeze(shape),
          NormedConvolution({.inputs = shape.width, .outputs = shape.outputs, .kernel = 1, .padding = 0}, kNorm),
          shape.activation,
          shape.stride == 1 && inputs == shape.outputs};
}

std::vector<InvertedResidual> draw_blocks(const std::vector<BlockShape>& shapes) {
  std::vector<InvertedResidual> blocks;
  std::int64_t inputs = kStemChannels;
  for (const BlockShape& shape : shapes) {
    blocks.push_back(draw_block(inputs, shape));
    inputs = shape.outputs;
  }
  return blocks;
}

// kaiming_normal_(mode="fan_out"), which torchvision draws over what the layers drew themselves.
void draw_again(const Convolution& layer) {
  const auto fan_out = static_cast<double>(layer.weight.size(0) * layer.weight.size(2) * layer.weight.size(3));
  layer.weight.normal_(0.0, std::sqrt(2.0) / std::sqrt(fan_out));
  if (layer.bias.defined()) layer.bias.zero_();
}

void draw_again(const Linear& layer) {
  layer.weight.normal_(0.0, 0.01);
  layer.bias.zero_();
}

void draw_again(const MobileNetV3& network) {
  c10::AutoGradMode no_graph(false);
  draw_again(network.stem.convolution);
  for (const InvertedResidual& block : network.blocks) {
    if (block.expand) draw_again(block.expand->convolution);
    draw_again(block.depthwise.convolution);
    if (block.squeeze) {
      draw_again(block.squeeze->reduce);
      draw_again(block.squeeze->expand);
    }
    draw_again(block.project.convolution);
  }
  draw_again(network.top.convolution);
  draw_again(network.hidden);
  draw_again(network.last);
}

}  // namespace

std::unique_ptr<Network> make_mobilenet_v3(const ModelOptions& options, const ImageShape& images) {
  const bool is_large = options.name == "mobilenet_v3_large";
  const std::vector<BlockShape>& shapes = is_large ? large_blocks() : small_blocks();
  const std::int64_t outputs = shapes.back().outputs, width = 6 * outputs, hidden = is_large ? 1280 : 1024;
  // Braces draw in this order.
  MobileNetV3 network{
      NormedConvolution({.inputs = images.channels, .outputs = kStemChannels, .stride = 2}, kNorm),
      draw_blocks(shapes),
      NormedConvolution({.inputs = outputs, .outputs = width, .kernel = 1, .padding = 0}, kNorm),
      Linear(width, hidden),
      Linear(hidden, options.num_classes),
      options.dropout,
  };
  draw_again(network);
  return std::make_unique<LayeredNetwork<MobileNetV3>>(std::move(network));
}

}  // namespace headrace
