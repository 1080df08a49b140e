// A function whose backward computes it again: what headrace::checkpoint() and the blocks of networks are.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace headrace {

// A block as functions of its inputs.
struct BlockPasses {
  using Pass = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  const char* name = "";  // What an error calls it.
  Pass first;
  Pass again;                         // The same numbers. May outlive the network.
  std::vector<at::Tensor> buffers{};  // That both change: `again` gets what was there before `first`, and leaves none.
  bool draws = false;                 // From the device's generator.
  bool to_host = false;  // The inputs lie in page-locked memory of the host until the backward. On a CUDA device alone.
};
// passes.first(inputs), of which nothing but the inputs is saved once it is over. The backward runs passes.again under
// the autocast and the generator's state of the first, both put back afterwards. Gradients go to the inputs and to the
// leaves of the graph that `first` records. Errors of headrace::checkpoint(), which begin with passes.name.
std::vector<at::Tensor> recomputed_block(const BlockPasses& passes, const std::vector<at::Tensor>& inputs);

}  // namespace headrace
