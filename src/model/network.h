// Networks by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <memory>
#include <string>
#include <vector>

#include "model/model_options.h"

namespace headrace {

// Initialised from at::manual_seed's default generator as PyTorch initialises the same layers in the same order: after
// the same seed, the same bits as the Python twin in bench/train_fashion/small_cnn.py, under the names of its
// state_dict.
class Network {
 public:
  virtual ~Network() = default;
  virtual at::Tensor forward(const at::Tensor& images) = 0;  // (N, C, H, W) -> logits (N, classes).
  virtual ModelState state() = 0;                            // Shares the tensors; set_training refers to this network.
  // From the next forward on. The state stays as it is. A network without the fused operators ignores it.
  virtual void set_fusion(Fusion fusion) = 0;
};

// Error{invalid_argument} for an unknown name lists the known ones and the nearest; or when the picture's size does not
// fit.
std::unique_ptr<Network> make_network(const ModelOptions& options, int channels, int height, int width);
std::vector<std::string> network_names();

}  // namespace headrace
