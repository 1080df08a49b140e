// Activations that the backward computes again instead of keeping them (Chen et al. 2016, arXiv 1604.06174).
//
// Networks are written with these functions once. Without recomputation each is the operator of its name and nothing
// else. With it the graph has the same nodes, whose kernels run on the same bits: what a node saved is only taken from
// a Recomputation when the backward wants it.
//
//   convolution -> x -> norm -> sum -> ReLU -> y -> convolution    kept: x, a mean and a deviation a channel
//
// In the backward, y is computed from x by a pass over it, once for the convolution and the ReLU that wait for it.
// Where a convolution takes few multiplications for a number of x, as of images, x is computed again, too. That makes
// up for shortcuts with a convolution, whose x no activation follows: without it a resnet50 keeps 52 %, with it 45 %.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "torch/model/detail/layered_network.h"
#include "torch/model/layers.h"
#include "torch/model/recomputed_block.h"

namespace headrace {

// Tensors of a forward that are computed again when one of them is first wanted, and held until each use has had its
// own. A second backward through a retained graph computes them once more. A backward that leaves nodes out, as for
// some inputs only, may leave them held until the graph ends or the next backward. Not thread-safe, as a backward is
// not.
class Recomputation {
 public:
  using Compute = std::function<std::vector<at::Tensor>()>;

  explicit Recomputation(Compute compute) : compute_(std::move(compute)) {}

  void add_use() noexcept { ++uses_; }     // One more take() in each backward.
  at::Tensor take(std::size_t index = 0);  // Outside every graph. Whoever has the only use may write into it.

 private:
  Compute compute_;
  std::size_t uses_ = 0, left_ = 0;
  std::vector<at::Tensor> values_;
};

// What one layer hands to the next.
struct Features {
  at::Tensor tensor;
  std::shared_ptr<Recomputation> again = nullptr;  // Null: kept by those who save it.
};

at::Tensor convolved(const Convolution& layer, const Features& input);
// Of a convolution, under ActivationCheckpointing::activations.
enum class ConvolutionOutput { kept, computed_again };
// The convolution and, unless it is folded, the normalisation behind it, whose output is computed again under
// ActivationCheckpointing::activations.
Features normed(const NormedConvolution& layer, const Features& input, const Mode& mode,
                ConvolutionOutput convolved_output = ConvolutionOutput::kept);
Features relu_of(const Features& input);                          // In place.
Features hard_swish_of(const Features& input);                    // Not: its backward reads what it was given.
Features sum_of(const Features& sum, const Features& term);       // In place of `sum`.
Features scaled(const at::Tensor& scale, const Features& input);  // (N, C, 1, 1) times (N, C, H, W).

struct PoolShape {
  std::int64_t kernel = 2, stride = 2, padding = 0;
};
Features max_pool_of(const Features& input, const PoolShape& shape);

// The output of the network's block of that number, from 0. What lies within it is computed again where the network's
// BlockCheckpointing says so.
template <class Block>
Features through_block(const Block& block, std::size_t number, const Features& input, const Mode& mode) {
  if (!mode.recomputes(ActivationCheckpointing::blocks)) return block(input, mode);
  BlockCheckpointing& blocks = *mode.blocks;
  const auto pass = [&](const Features& given) {
    blocks.begin_block(given.tensor);
    Features output = block(given, mode);
    blocks.end_block(output.tensor);
    return output;
  };
  if (!blocks.recomputes(number)) return pass(input);
  const Mode plain{.training = mode.training, .fusion = mode.fusion};
  const BlockPasses passes{
      .name = "model: activation_checkpointing = \"blocks\"",
      .first =
          [&pass](const std::vector<at::Tensor>& inputs) { return std::vector<at::Tensor>{pass({inputs[0]}).tensor}; },
      .again =
          [block, plain](const std::vector<at::Tensor>& inputs) {
            return std::vector<at::Tensor>{block.with_own_statistics()({inputs[0]}, plain).tensor};
          },
      .draws = block.draws(),
      .to_host = blocks.offloads(input.tensor),
  };
  return {recomputed_block(passes, {input.tensor})[0]};
}

}  // namespace headrace
