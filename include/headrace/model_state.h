// A model as the trainer sees it: named parameters, named buffers, a train/eval switch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// The tensors are shared with the model, never copies. Names are torchvision's where it has the network.
struct ModelState {
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // In order of registration; all require gradients.
  std::vector<std::pair<std::string, at::Tensor>> buffers;     // Running statistics and such.
  std::function<void(bool training)> set_training;
};

}  // namespace headrace
