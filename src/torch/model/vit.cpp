// Vision transformers (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"). Each operator is the one that
// torchvision and torch.nn.MultiheadAttention use, on tensors of the same strides, and so gives the same bits.
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/model/attention_kernel.h"
#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputation.h"

namespace headrace {
namespace {

constexpr double kNormEpsilon = 1e-6;
constexpr VitOptions kVitB16{.patch_size = 16, .num_layers = 12, .num_heads = 12, .hidden_dim = 768, .mlp_dim = 3072};

// Tokens (N, L, E) to tokens, each head its own E / heads of the numbers.
struct SelfAttention {
  at::Tensor in_weight, in_bias;  // (3E, E), (3E): queries, keys, values.
  Linear out;
  std::int64_t heads;
  double dropout;

  at::Tensor operator()(const at::Tensor& tokens, bool training) const {
    const std::int64_t n = tokens.size(0), length = tokens.size(1), width = tokens.size(2);
    const at::Tensor projected = at::linear(tokens.transpose(1, 0), in_weight, in_bias)
                                     .unflatten(-1, {3, width})
                                     .unsqueeze(0)
                                     .transpose(0, -2)
                                     .squeeze(-2)
                                     .contiguous();  // (3, L, N, E).
    const auto by_head = [&](std::int64_t part) {
      return projected.select(0, part)
          .view({length, n * heads, width / heads})
          .transpose(0, 1)
          .view({n, heads, length, width / heads});
    };
    const at::Tensor query = by_head(0), key = by_head(1), value = by_head(2);
    const at::Tensor mixed = at::scaled_dot_product_attention(query, key, value, {}, training ? dropout : 0.0);
    const at::Tensor flat = mixed.permute({2, 0, 1, 3}).contiguous().view({length * n, width});
    return out(flat).view({length, n, width}).transpose(1, 0);
  }

  void register_in(ModelState& state, const std::string& name) const {
    state.parameters.emplace_back(name + ".in_proj_weight", in_weight);
    state.parameters.emplace_back(name + ".in_proj_bias", in_bias);
    out.register_in(state, name + ".out_proj");
  }

  SelfAttention copied() const { return {copy_of(in_weight), copy_of(in_bias), out.copied(), heads, dropout}; }
};

struct EncoderBlock {
  LayerNorm first_norm;
  SelfAttention attention;
  LayerNorm second_norm;
  Linear hidden, last;
  double dropout;

  Features operator()(const Features& input, const Mode& mode) const {
    const at::Tensor& tokens = input.tensor;
    const bool training = mode.training;
    const at::Tensor mixed = at::dropout(attention(first_norm(tokens), training), dropout, training).add(tokens);
    const at::Tensor inner = at::dropout(at::gelu(hidden(second_norm(mixed))), dropout, training);
    return {mixed.add(at::dropout(last(inner), dropout, training))};
  }

  bool draws() const { return dropout > 0 || attention.dropout > 0; }

  EncoderBlock with_own_statistics() const { return *this; }  // It has none.

  void register_in(ModelState& state, const std::string& name) const {
    first_norm.register_in(state, name + ".ln_1");
    attention.register_in(state, name + ".self_attention");
    second_norm.register_in(state, name + ".ln_2");
    hidden.register_in(state, name + ".mlp.0");
    last.register_in(state, name + ".mlp.3");
  }

  EncoderBlock copied() const {
    return {first_norm.copied(), attention.copied(), second_norm.copied(), hidden.copied(), last.copied(), dropout};
  }
};

std::string block_name(std::size_t block) {
  return "encoder.layers.encoder_layer_" + std::to_string(block);
}

struct Vit {
  at::Tensor class_token;  // (1, 1, E).
  Convolution patches;
  at::Tensor positions;  // (1, L, E).
  std::vector<EncoderBlock> blocks;
  LayerNorm norm;
  Linear head;
  double dropout;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    const std::int64_t n = images.size(0);
    const at::Tensor embedded = patches(images);
    const at::Tensor tokens =
        embedded.reshape({n, embedded.size(1), embedded.size(2) * embedded.size(3)}).permute({0, 2, 1});
    const at::Tensor placed = at::cat({class_token.expand({n, -1, -1}), tokens}, 1).add(positions);
    Features features{at::dropout(placed, dropout, mode.training)};
    for (std::size_t i = 0; i < blocks.size(); ++i) features = through_block(blocks[i], i, features, mode);
    return head(norm(features.tensor).select(1, 0));
  }

  void register_in(ModelState& state) const {
    state.parameters.emplace_back("class_token", class_token);
    patches.register_in(state, "conv_proj");
    state.parameters.emplace_back("encoder.pos_embedding", positions);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].register_in(state, block_name(i));
    norm.register_in(state, "encoder.ln");
    head.register_in(state, "heads.head");
  }

  std::vector<std::string> block_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < blocks.size(); ++i) names.push_back(block_name(i));
    return names;
  }

  // There is nothing to fold: a layer norm depends on its input.
  Vit folded() const {
    Vit result{copy_of(class_token), patches.copied(), copy_of(positions), {}, norm.copied(), head.copied(), dropout};
    for (const EncoderBlock& block : blocks) result.blocks.push_back(block.copied());
    return result;
  }
};

// xavier_uniform_: the same doubles as in torch.nn.init.
void draw_xavier(const at::Tensor& weight) {
  const double bound = std::sqrt(3.0) * std::sqrt(2.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  weight.uniform_(-bound, bound);
}

// trunc_normal_ between -2 and 2: the inverse of the normal distribution at uniform draws.
void draw_truncated_normal(const at::Tensor& weight, double deviation) {
  const auto share_below = [&](double bound) { return (1.0 + std::erf(bound / deviation / std::sqrt(2.0))) / 2.0; };
  weight.uniform_(2.0 * share_below(-2.0) - 1.0, 2.0 * share_below(2.0) - 1.0);
  weight.erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2.0, 2.0);
}

SelfAttention draw_attention(const VitOptions& sizes) {
  const std::int64_t width = sizes.hidden_dim;
  SelfAttention attention{at::empty({3 * width, width}), at::zeros({3 * width}), Linear(width, width), sizes.num_heads,
                          sizes.attention_dropout};
  draw_xavier(attention.in_weight);
  attention.in_weight.requires_grad_();
  attention.in_bias.requires_grad_();
  attention.out.bias.zero_();
  return attention;
}

EncoderBlock draw_block(const VitOptions& sizes) {
  // Braces draw in this order.
  EncoderBlock block{LayerNorm(sizes.hidden_dim, kNormEpsilon), draw_attention(sizes),
                     LayerNorm(sizes.hidden_dim, kNormEpsilon), Linear(sizes.hidden_dim, sizes.mlp_dim),
                     Linear(sizes.mlp_dim, sizes.hidden_dim),   sizes.dropout};
  for (const Linear* layer : {&block.hidden, &block.last}) {
    draw_xavier(layer->weight);
    layer->bias.normal_(0.0, 1e-6);
  }
  return block;
}

std::vector<EncoderBlock> draw_blocks(const VitOptions& sizes) {
  std::vector<EncoderBlock> blocks;
  for (std::int64_t i = 0; i < sizes.num_layers; ++i) blocks.push_back(draw_block(sizes));
  return blocks;
}

void check_sizes(const VitOptions& sizes, const std::string& name, const ImageShape& images) {
  if (images.height % sizes.patch_size != 0 || images.width % sizes.patch_size != 0) {
    fail(ErrorCode::invalid_argument, "model: {}: wanted images whose sides are multiples of {}, found {}x{}", name,
         sizes.patch_size, images.height, images.width);
  }
  if (sizes.hidden_dim % sizes.num_heads != 0) {
    fail(ErrorCode::invalid_argument, "model: {}: wanted model.vit.num_heads to divide hidden_dim, found {} and {}",
         name, sizes.num_heads, sizes.hidden_dim);
  }
}

const VitOptions& sizes_of(const ModelOptions& options) {
  return options.name == "vit_b_16" ? kVitB16 : options.vit;
}

// As ScaledDotProductAttention of the Python package calls them.
const char* kernel_name(at::SDPBackend kernel) {
  switch (kernel) {
    case at::SDPBackend::math:
      return "math";
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "efficient";
    case at::SDPBackend::cudnn_attention:
      return "cudnn";
    default:
      return "unavailable";
  }
}

}  // namespace

std::optional<Applied> applied_attention(const ModelOptions& options, std::int64_t height, std::int64_t width,
                                         at::ScalarType dtype) {
  if (options.name != "vit" && options.name != "vit_b_16") return std::nullopt;
  const VitOptions& sizes = sizes_of(options);
  const std::int64_t tokens = 1 + (height / sizes.patch_size) * (width / sizes.patch_size);
  const at::Tensor query =
      at::empty({1, sizes.num_heads, tokens, sizes.hidden_dim / sizes.num_heads}, at::TensorOptions(dtype));
  const auto kernel = static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(query, query, query, /*attn_mask=*/{}, sizes.attention_dropout, /*is_causal=*/false));
  const bool is_ruled_out = kernel == at::SDPBackend::math && sizes.attention_dropout > 0;
  return Applied{"model.attention", "auto", kernel_name(kernel),
                 is_ruled_out ? "model.vit.attention_dropout is above 0, for which the CPU has no other kernel" : ""};
}

std::unique_ptr<Network> make_vit(const ModelOptions& options, const ImageShape& images) {
  const VitOptions& sizes = sizes_of(options);
  check_sizes(sizes, options.name, images);
  const std::int64_t width = sizes.hidden_dim, side = sizes.patch_size;
  const std::int64_t tokens = 1 + (images.height / side) * (images.width / side);
  c10::AutoGradMode no_graph(false);
  // Braces draw in this order.
  Vit network{
      at::zeros({1, 1, width}),
      Convolution(
          {.inputs = images.channels, .outputs = width, .kernel = side, .stride = side, .padding = 0, .bias = true}),
      at::empty({1, tokens, width}).normal_(0.0, 0.02),
      draw_blocks(sizes),
      LayerNorm(width, kNormEpsilon),
      Linear(width, options.num_classes),
      sizes.dropout,
  };
  network.class_token.requires_grad_();
  network.positions.requires_grad_();
  const auto fan_in = static_cast<double>(images.channels * side * side);
  draw_truncated_normal(network.patches.weight, std::sqrt(1.0 / fan_in));
  network.patches.bias.zero_();
  network.head.weight.zero_();
  network.head.bias.zero_();
  return std::make_unique<LayeredNetwork<Vit>>(std::move(network));
}

}  // namespace headrace
