#include <array>
#include <string>
#include <vector>

#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputation.h"

namespace headrace {
namespace {

// As many as 2 cores train with 2,800 images of 64x64 a second (batch 64, float32, NCHW): about what they decode, so
// that neither loading nor computing hides a change of the other. Measured by strided_cnn_bench.
constexpr std::array<std::int64_t, 4> kChannels{16, 32, 64, 96};

struct StridedCnn {
  std::vector<NormedConvolution> convolutions;
  Linear last;

  at::Tensor operator()(const at::Tensor& images, const Mode& mode) const {
    Features features{images};
    for (const NormedConvolution& layer : convolutions) {
      const bool is_first = &layer == &convolutions.front();
      features = relu_of(
          normed(layer, features, mode, is_first ? ConvolutionOutput::computed_again : ConvolutionOutput::kept));
    }
    return last(mean_of_images(features.tensor));
  }

  void register_in(ModelState& state) const {
    for (std::size_t i = 0; i < convolutions.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      convolutions[i].register_in(state, "conv" + number, "bn" + number);
    }
    last.register_in(state, "fc");
  }

  StridedCnn folded() const {
    StridedCnn result{{}, last.copied()};
    for (const NormedConvolution& layer : convolutions) result.convolutions.push_back(layer.folded());
    return result;
  }
};

std::vector<NormedConvolution> draw_convolutions(std::int64_t channels) {
  std::vector<NormedConvolution> layers;
  for (const std::int64_t outputs : kChannels) {
    layers.emplace_back(ConvolutionShape{.inputs = channels, .outputs = outputs, .stride = 2});
    channels = outputs;
  }
  return layers;
}

}  // namespace

std::unique_ptr<Network> make_strided_cnn(const ModelOptions& options, const ImageShape& images) {
  // Braces draw in this order.
  return std::make_unique<LayeredNetwork<StridedCnn>>(
      StridedCnn{draw_convolutions(images.channels), Linear(kChannels.back(), options.num_classes)});
}

}  // namespace headrace
