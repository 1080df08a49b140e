#include "torch/model/recomputation.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/native_batch_norm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <tuple>

#include "torch/model/detail/replay.h"

namespace headrace {
namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::SavedVariable;

// The node that made the tensor; null: another kind, or none.
template <class Node>
Node* node_of(const at::Tensor& tensor) {
  return dynamic_cast<Node*>(tensor.grad_fn().get());
}

class TakenAgain final : public torch::autograd::SavedVariableHooks {
 public:
  TakenAgain(std::shared_ptr<Recomputation> again, std::size_t index) : again_(std::move(again)), index_(index) {}
  void call_pack_hook(const at::Tensor&) override {}  // Forgets it.
  at::Tensor call_unpack_hook() override { return again_->take(index_); }

 private:
  std::shared_ptr<Recomputation> again_;
  std::size_t index_;
};

// Has what a node saved come from `again`. Nothing happens where the node saved nothing or something else, such as a
// copy that autocast made, or where hooks of somebody else keep it.
void take_again(SavedVariable& saved, const at::Tensor& tensor, const std::shared_ptr<Recomputation>& again,
                std::size_t index = 0) {
  const std::optional<at::Tensor> kept = saved.get_raw_data();
  if (!kept || !kept->defined() || !kept->is_alias_of(tensor) || kept->sizes() != tensor.sizes()) return;
  again->add_use();
  saved.register_hooks(std::make_unique<TakenAgain>(again, index));
}

using Operand = std::function<at::Tensor()>;

// Where a Recomputation has its operand from. One that is kept is checked against changes in place, as autograd does.
Operand operand_of(const Features& features) {
  if (features.again) {
    features.again->add_use();
    return [again = features.again] { return again->take(); };
  }
  return
      [kept = std::make_shared<const SavedVariable>(features.tensor, /*is_output=*/false)] { return kept->unpack(); };
}

std::shared_ptr<Recomputation> computed_by(std::function<at::Tensor()> compute) {
  return std::make_shared<Recomputation>([one = std::move(compute)] { return std::vector<at::Tensor>{one()}; });
}

bool is_dense_image(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
}

// The output of a batch normalisation in training, from its input.
class NormAgain {
 public:
  NormAgain(const BatchNorm& norm, const Features& input, const at::Tensor& output)
      : norm_(norm), input_(operand_of(input)), weight_(norm.weight, false), bias_(norm.bias, false) {
    const auto* node = node_of<nodes::NativeBatchNormBackward0>(output);
    const at::ScalarType type = norm.weight.scalar_type();
    const at::Tensor& x = input.tensor;
    if (node == nullptr || !x.is_cpu() || !is_dense_image(x) || (type != at::kFloat && type != at::kDouble)) return;
    mean_ = node->result1_.unpack(output.grad_fn());
    invstd_ = node->result2_.unpack(output.grad_fn());
  }

  at::Tensor operator()() const {
    const at::Tensor input = input_(), weight = weight_.unpack(), bias = bias_.unpack();
    if (!mean_.defined()) return norm_.with_own_statistics()(input, NormMode::training);
    // In training ATen's CPU kernel computes x * a + (bias - mean * a) with a = weight * invstd; in evaluation it does
    // the same with invstd = 1 / sqrt(variance + epsilon). Here that is 1, exactly, and so `a` the same bits, without
    // two more passes over x for its mean and variance.
    constexpr double kEpsilon = 0x1p-10;
    return std::get<0>(at::native_batch_norm(input, weight.mul(invstd_), bias, mean_,
                                             at::full_like(mean_, 1.0 - kEpsilon), /*training=*/false,
                                             /*momentum=*/0.0, kEpsilon));
  }

 private:
  BatchNorm norm_;
  Operand input_;
  SavedVariable weight_, bias_;
  at::Tensor mean_, invstd_;  // Undefined where the whole operator runs again.
};

// The output of a convolution, from its input.
class ConvolutionAgain {
 public:
  ConvolutionAgain(const Convolution& layer, const Features& input)
      : layer_(layer),
        state_(current_state(input.tensor.device(), /*draws=*/false)),
        wants_gradient_(input.tensor.requires_grad()),
        input_(operand_of(input)),
        weight_(layer.weight, false),
        bias_(layer.bias, false) {}

  at::Tensor operator()() const {
    weight_.unpack();  // Checks that it is unchanged.
    bias_.unpack();
    const at::Tensor input = input_().detach();
    const Replayed replayed(state_);
    const NoCopiesOfWeights no_copies;
    const c10::AutoGradMode graph(true);  // As in the forward: kernels may be chosen by it.
    return layer_(input.requires_grad_(wants_gradient_)).detach();
  }

 private:
  Convolution layer_;
  ReplayState state_;
  bool wants_gradient_;
  Operand input_;
  SavedVariable weight_, bias_;
};

}  // namespace

at::Tensor Recomputation::take(std::size_t index) {
  if (values_.empty()) {
    const c10::AutoGradMode no_graph(false);
    values_ = compute_();
    left_ = uses_;
  }
  at::Tensor value = values_[index];
  if (--left_ == 0) values_.clear();
  return value;
}

at::Tensor convolved(const Convolution& layer, const Features& input) {
  at::Tensor output = layer(input.tensor);
  if (!input.again) return output;
  if (auto* node = node_of<nodes::ConvolutionBackward0>(output)) take_again(node->input_, input.tensor, input.again);
  return output;
}

Features normed(const NormedConvolution& layer, const Features& input, const Mode& mode,
                ConvolutionOutput convolved_output) {
  Features kept{convolved(layer.convolution, input)};
  if (!layer.norm) return kept;
  const at::Tensor output = (*layer.norm)(kept.tensor, mode.norm());
  // NormAgain is for the statistics of a batch: what a frozen normalisation gives is kept.
  const bool is_again = mode.recomputes(ActivationCheckpointing::activations) && !layer.norm->is_frozen();
  if (!is_again || !output.requires_grad()) return {output};
  auto* node = node_of<nodes::NativeBatchNormBackward0>(output);
  if (convolved_output == ConvolutionOutput::computed_again && node != nullptr) {  // Another node keeps it by itself.
    kept.again = computed_by([convolution = std::make_shared<const ConvolutionAgain>(layer.convolution, input)] {
      return (*convolution)();
    });
    take_again(node->input_, kept.tensor, kept.again);
  }
  return {output,
          computed_by([norm = std::make_shared<const NormAgain>(*layer.norm, kept, output)] { return (*norm)(); })};
}

Features relu_of(const Features& input) {
  const at::Tensor output = input.tensor.relu_();
  if (!input.again) return {output};
  auto again = computed_by([source = operand_of(input)] {
    const at::Tensor value = source();  // The forward went in place, so nobody else has saved it.
    return value.relu_();
  });
  if (auto* node = node_of<nodes::ReluBackward0>(output)) take_again(node->result_, output, again);
  return {output, std::move(again)};
}

Features hard_swish_of(const Features& input) {
  const at::Tensor output = at::hardswish(input.tensor);
  if (!input.again) return {output};
  if (auto* node = node_of<nodes::HardswishBackward0>(output)) take_again(node->self_, input.tensor, input.again);
  return {output, computed_by([source = operand_of(input)] { return at::hardswish(source()); })};
}

Features sum_of(const Features& sum, const Features& term) {
  const at::Tensor output = sum.tensor.add_(term.tensor);
  if (!sum.again) return {output};
  return {output, computed_by([source = operand_of(sum), other = operand_of(term)] {
            const at::Tensor value = source();  // As in relu_of().
            return value.add_(other());
          })};
}

Features scaled(const at::Tensor& scale, const Features& input) {
  const at::Tensor output = scale.mul(input.tensor);
  if (!input.again) return {output};
  if (auto* node = node_of<nodes::MulBackward0>(output)) take_again(node->other_, input.tensor, input.again);
  return {output, computed_by([factor = operand_of({scale}), source = operand_of(input)] {
            const at::Tensor value = factor();
            return value.mul(source());
          })};
}

Features max_pool_of(const Features& input, const PoolShape& shape) {
  const at::Tensor output = at::max_pool2d(input.tensor, shape.kernel, shape.stride, shape.padding);
  auto* node = node_of<nodes::MaxPool2DWithIndicesBackward0>(output);
  if (!input.again || node == nullptr) return {output};
  take_again(node->self_, input.tensor, input.again);
  auto again = std::make_shared<Recomputation>([source = operand_of(input), shape] {
    const at::Tensor value = source();
    auto [pooled, indices] = at::max_pool2d_with_indices(value, shape.kernel, shape.stride, shape.padding);
    return std::vector<at::Tensor>{pooled, indices};
  });
  const at::Tensor indices = node->result1_.get_raw_data().value_or(at::Tensor());
  if (indices.defined()) take_again(node->result1_, indices, again, /*index=*/1);
  return {output, std::move(again)};
}

}  // namespace headrace
