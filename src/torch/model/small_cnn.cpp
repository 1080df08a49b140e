#include "core/base/fail.h"
#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputation.h"

namespace headrace {
namespace {

// The Python reference clamps before it pools. Pooling first gives the same bits, since the larger of two clamped
// values is the clamped larger one, and so does the gradient: where all four are negative it is zero either way. It
// clamps a quarter of the elements, and in place, since neither operator's backward reads what is overwritten.
Features block(const Features& input, const NormedConvolution& layer, const Mode& mode, ConvolutionOutput output) {
  if (mode.fusion == Fusion::norm_relu_pool && layer.norm) {
    return {layer.norm->with_relu_and_pool(convolved(layer.convolution, input), mode.norm())};
  }
  return relu_of(max_pool_of(normed(layer, input, mode, output), {}));
}

struct SmallCnn {
  static constexpr bool kFuses = true;
  NormedConvolution first, second;
  Linear hidden, last;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    const Features half = block({images}, first, mode, ConvolutionOutput::computed_again);
    const Features features = block(half, second, mode, ConvolutionOutput::kept);
    return last(hidden(features.tensor.flatten(1)).relu_());
  }

  void register_in(ModelState& state) const {
    first.register_in(state, "conv1", "bn1");
    second.register_in(state, "conv2", "bn2");
    hidden.register_in(state, "fc1");
    last.register_in(state, "fc2");
  }

  SmallCnn folded() const { return {first.folded(), second.folded(), hidden.copied(), last.copied()}; }
};

}  // namespace

std::unique_ptr<Network> make_small_cnn(const ModelOptions& options, const ImageShape& images) {
  if (images.height < 4 || images.width < 4) {
    fail(ErrorCode::invalid_argument, "model: small_cnn: wanted images of at least 4x4, found {}x{}", images.height,
         images.width);
  }
  const std::int64_t flat = 64 * (images.height / 4) * (images.width / 4);
  // Braces draw in this order; a call's arguments would be drawn in any.
  return std::make_unique<LayeredNetwork<SmallCnn>>(
      SmallCnn{NormedConvolution({.inputs = images.channels, .outputs = 32, .bias = true}),
               NormedConvolution({.inputs = 32, .outputs = 64, .bias = true}), Linear(flat, 128),
               Linear(128, options.num_classes)});
}

}  // namespace headrace
