// A native network as a value: what its layers compute, how they are named, and how they fold.
#pragma once

#include <c10/core/GradMode.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "torch/model/network.h"

namespace headrace {

struct Mode {
  bool training = true;
  Fusion fusion = Fusion::none;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::none;
  std::int64_t checkpoint_every = 1;

  // Whether the backward of a forward that begins now computes these again. There is nothing to save on without one.
  bool recomputes(ActivationCheckpointing these) const {
    return checkpointing == these && training && c10::GradMode::is_enabled();
  }
  // The same of the network's block of that number, from 0: of so many blocks one after the other the first.
  bool recomputes_block(std::size_t number) const {
    return recomputes(ActivationCheckpointing::blocks) && number % static_cast<std::size_t>(checkpoint_every) == 0;
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

  void set_activation_checkpointing(ActivationCheckpointing kind, std::int64_t every) override {
    mode_.checkpointing = kind;
    mode_.checkpoint_every = every;
  }

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
