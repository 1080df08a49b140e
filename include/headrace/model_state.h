// A model as the trainer sees it: named parameters, named buffers, a train/eval switch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace headrace {

// The tensors are shared with the model, never copies. Names are torchvision's where it has the network. A parameter
// that requires no gradients is frozen.
struct ModelState {
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // In order of registration.
  std::vector<std::pair<std::string, at::Tensor>> buffers;     // Running statistics and such.
  std::function<void(bool training)> set_training;
};

// All parameters, frozen ones too, and all buffers of a torch::nn module under their names; of a module holder
// `net.ptr()`. The switch to evaluation remembers each submodule's mode and the switch back restores that: a batch norm
// that the user froze stays frozen. The state holds the module. Error{invalid_argument}: no module, or no parameters.
ModelState module_state(std::shared_ptr<torch::nn::Module> module);

}  // namespace headrace
