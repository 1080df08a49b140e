#include "torch/model/detail/families.h"
#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"

namespace headrace {
namespace {

struct Mlp {
  Linear hidden, last;

  at::Tensor operator()(const at::Tensor& images, const Mode&) const { return last(hidden(images.flatten(1)).relu_()); }

  void register_in(ModelState& state) const {
    hidden.register_in(state, "fc1");
    last.register_in(state, "fc2");
  }

  Mlp folded() const { return {hidden.copied(), last.copied()}; }
};

}  // namespace

std::unique_ptr<Network> make_mlp(const ModelOptions& options, const ImageShape& images) {
  const std::int64_t inputs = images.channels * images.height * images.width;
  return std::make_unique<LayeredNetwork<Mlp>>(Mlp{Linear(inputs, 128), Linear(128, options.num_classes)});
}

}  // namespace headrace
