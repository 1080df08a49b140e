// A native network as a value: what its layers compute, how they are named, and how they fold.
#pragma once

#include <c10/core/GradMode.h>
#include <headrace/model.h>

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "torch/model/detail/block_checkpointing.h"
#include "torch/model/frozen_parts.h"
#include "torch/model/layers.h"

namespace headrace {

struct Mode {
  bool training = true;
  Fusion fusion = Fusion::none;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::none;
  BlockCheckpointing* blocks = nullptr;  // The network's, in its own forward.
  bool averages_statistics = false;      // NormMode::averaging in the place of training.

  NormMode norm() const {
    if (!training) return NormMode::evaluation;
    return averages_statistics ? NormMode::averaging : NormMode::training;
  }
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

// Those that lie in blocks, one after the other, and go through them by through_block() of recomputation.h.
template <class T>
concept LayersInBlocks = requires(const T& layers) {
  { layers.block_names() } -> std::same_as<std::vector<std::string>>;
};

template <class Layers>
std::vector<std::string> block_names_of(const Layers& layers) {
  if constexpr (LayersInBlocks<Layers>) return layers.block_names();
  return {};
}

// Whether the fused operators of Fusion stand in the place of those that could be computed again.
template <class T>
concept LayersThatFuse = requires {
  requires T::kFuses;
};

template <LayersOfNetwork Layers>
class LayeredNetwork final : public Network {
 public:
  explicit LayeredNetwork(Layers layers) : layers_(std::move(layers)), blocks_(block_names_of(layers_)) {}

  at::Tensor forward(const at::Tensor& images) override {
    Mode mode = mode_;
    mode.blocks = &blocks_;
    const auto pass = [&] { return layers_(images, mode); };
    if (!mode.recomputes(ActivationCheckpointing::blocks) || !blocks_.is_due(images)) return pass();
    std::vector<at::Tensor> constant;
    const ModelState tensors = state();
    for (const auto& [name, tensor] : tensors.parameters) constant.push_back(tensor);
    for (const auto& [name, tensor] : tensors.buffers) constant.push_back(tensor);
    return blocks_.measured(images, constant, pass);
  }

  ModelState state() override {
    ModelState state;
    layers_.register_in(state);
    state.set_training = [this](bool training) { mode_.training = training; };
    return state;
  }

  void set_fusion(Fusion fusion) override { mode_.fusion = fusion; }

  bool average_statistics(bool on) override {
    const std::vector<at::Tensor> counts = moving_batch_counts(state());
    if (on) {
      for (const at::Tensor& count : counts) count.zero_();
    }
    mode_.averages_statistics = on;
    return !counts.empty();
  }

  void set_activation_checkpointing(const CheckpointingRequest& request) override {
    blocks_.set(request);
    mode_.checkpointing = request.kind;
  }

  CheckpointingReport checkpointing_report() override {
    CheckpointingReport report = blocks_.report(state().parameters.front().second.device());
    if constexpr (LayersThatFuse<Layers>) {
      if (mode_.checkpointing == ActivationCheckpointing::activations && mode_.fusion != Fusion::none) {
        report.applied.front().applied = "none";
        report.applied.front().reason = "model.fusion = \"norm_relu_pool\" keeps what its own backward reads";
      }
    }
    return report;
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
  BlockCheckpointing blocks_;
  Mode mode_;
};

}  // namespace headrace
