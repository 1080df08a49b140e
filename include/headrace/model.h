// Networks by name, and TorchScript files.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/activation_checkpointing.h>
#include <headrace/model_state.h>
#include <headrace/options/model.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// Not thread-safe. A native network is initialised from at::manual_seed's default generator as PyTorch initialises the
// same layers in the same order: after the same seed, the same bits as its Python reference, under the names of the
// reference's state_dict. References: torchvision.models for resnets, MobileNetV3 and ViT;
// bench/train_fashion/small_cnn.py; the others in tests/model_parity_test.py. One with dropout draws from the same
// generator in training.
class Network {
 public:
  virtual ~Network() = default;
  virtual at::Tensor forward(const at::Tensor& images) = 0;  // (N, C, H, W) -> logits (N, classes).
  virtual ModelState state() = 0;                            // Shares the tensors; set_training refers to this network.
  // From the next forward on. The state stays as it is. A network without the fused operators ignores it.
  virtual void set_fusion(Fusion fusion) = 0;
  // Running statistics of batch normalisations in training, from the next forward on: on, they begin anew and become
  // the plain mean over the batches, as in torch.optim.swa_utils.update_bn; off, they move with each batch again. Those
  // of a frozen one stay. Returns whether there are any that change. Error{unsupported}: on, of a TorchScript module
  // that has running statistics.
  virtual bool average_statistics(bool on) = 0;
  // From the next forward on that trains. Losses, gradients, buffers and generators stay the same bits. A network
  // without such parts ignores it. There is no second derivative through blocks: Error{unsupported} in their backward.
  // Error{invalid_argument}: it names blocks that the network does not have; all stays as it was.
  virtual void set_activation_checkpointing(const CheckpointingRequest& request) = 0;
  virtual CheckpointingReport checkpointing_report() = 0;  // As of the last forward. Empty where nothing is asked for.
  // What forward computes in evaluation with the weights as they are now, without a graph: each batch normalisation is
  // folded into its convolution, a TorchScript module is frozen. Equal but for rounding. Holds weights of its own, in
  // the layout that they have now, so that later training changes nothing of it; may outlive the network and be called
  // by several threads at once.
  virtual std::function<at::Tensor(const at::Tensor&)> frozen() = 0;
};

// Draws the network, or reads "torchscript:FILE", loads options.weights over it (Error of weights.h), and freezes
// options.frozen (Error of frozen_parts.h). options.memory_format is left to Trainer::set_memory_format().
// Error{invalid_argument} for an unknown name lists the known ones and the nearest; or when the images' size does not
// fit, or an option that the network does not have. Loading a TorchScript file runs code from it: only files that are
// trusted as much as this program.
std::unique_ptr<Network> make_network(const ModelOptions& options, int channels, int height, int width);
// FILE of the name "torchscript:FILE"; nullopt: another name, which runs no code of a file's.
std::optional<std::string> script_file(const std::string& name);
// Those that need no file.
std::vector<std::string> network_names();

}  // namespace headrace
