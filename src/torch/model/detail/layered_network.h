// A native network as a value: what its layers compute, how they are named, and how they fold.
#pragma once

#include <c10/core/GradMode.h>

#include <concepts>
#include <utility>

#include "torch/model/network.h"

namespace headrace {

struct Mode {
  bool training = true;
  Fusion fusion = Fusion::none;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::none;

  // Whether the backward of a forward that begins now computes these again. There is nothing to save on without one.
  bool recomputes(ActivationCheckpointing these) const {
    return checkpointing == these && training && c10::GradMode::is_enabled();
  }
};

// Layers are values whose copies share their tensors. folded() gives layers for evaluation with tensors of their own.
template <class T>
concept LayersOfNetwork = requires(const T& layers, const at::Tensor& images, const Mode& mode, ModelState& state) {
  { layers(images, mode) } -> std::same_as<at::Tensor>;
  layers.register_in(state);
  { layers.folded() } -> std::same_as<T>;
};

template <LayersOfNetwork Layers>
class LayeredNetwork final : public Network {
 public:
  explicit LayeredNetwork(Layers layers) : layers_(std::move(layers)) {}

  at::Tensor forward(const at::Tensor& images) override { return layers_(images, mode_); }

  ModelState state() override {
    ModelState state;
    layers_.register_in(state);
    state.set_training = [this](bool training) { mode_.training = training; };
    return state;
  }

  void set_fusion(Fusion fusion) override { mode_.fusion = fusion; }

  void set_activation_checkpointing(ActivationCheckpointing kind) override { mode_.checkpointing = kind; }

  std::function<at::Tensor(const at::Tensor&)> frozen() override {
    c10::AutoGradMode no_graph(false);
    return [layers = layers_.folded()](const at::Tensor& images) {
      c10::AutoGradMode no_graph_either(false);
      return layers(images, {.training = false});
    };
  }

 private:
  Layers layers_;
  Mode mode_;
};

}  // namespace headrace
