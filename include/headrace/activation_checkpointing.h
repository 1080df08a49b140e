// Activations that the backward computes again instead of keeping them (Chen et al. 2016, arXiv 1604.06174): of a
// function of one's own, and what is in force of it in a network that model.h makes.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/error.h>
#include <headrace/options/model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct CheckpointOptions {
  // Those that the function changes, as block->buffers() of a torch::nn module: running statistics are updated once.
  std::vector<at::Tensor> buffers{};
  bool preserve_rng_state = true;  // false saves 5 KiB, for a function that draws nothing.
};

// function(inputs), as torch.utils.checkpoint.checkpoint: of what it computes nothing is kept until the backward but
// `inputs` and its results. The backward calls it once more, under the autocast, the state of the default generator
// and the `buffers` of the first call, all put back afterwards, so that dropout has the same masks. Losses, gradients,
// buffers and later draws are bit for bit those of the plain call where its operators are deterministic.
//
// Generator and autocast are those of the device of the first input that is not on the CPU, else the CPU's. The
// function is kept as long as the graph, with what it captures, and must compute the same both times: a captured tensor
// that has changed meanwhile goes unnoticed unless it is a parameter. Parameters that it uses get their gradients
// whether they are captured or belong to a module; a captured tensor that was itself computed with a graph must be
// among `inputs`. While no graph is recorded it is a plain call. May stand within another one.
//
// Cost: one more call in each backward; beside the inputs, copies of `buffers` and the generator's state. While either
// call runs, its own activations are held. Safe from any thread that may call the function.
//
// Error{invalid_argument}: no input, or an input or a result that is undefined; a captured tensor with a graph, by the
// operator that made it; in the backward, other results than the first time. Error{unsupported} in a backward that
// makes a graph: there is no second derivative. c10::Error in the backward: an input or a parameter was changed in
// place.
std::vector<at::Tensor> checkpoint(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>& function,
    const std::vector<at::Tensor>& inputs, const CheckpointOptions& options = {});
// Of one tensor to one.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor& input)>& function, const at::Tensor& input,
                      const CheckpointOptions& options = {});

// The options of ModelOptions that begin with checkpoint_, and their meaning.
struct CheckpointingRequest {
  ActivationCheckpointing kind = ActivationCheckpointing::none;
  std::int64_t every = 1;             // Of so many blocks one after the other the first; at least 1.
  std::vector<std::string> blocks{};  // These alone, or all in what they name; empty: all.
  double budget_mib = 0.0;            // 0: none.
  CheckpointOffload offload = CheckpointOffload::none;
};

// The bytes are those of the largest training forward so far, by what its operators made and the graph held; nullopt
// before the first, and without blocks. Parameters, buffers and images are not counted, nor what the loss keeps, nor
// the generator's state of a block that draws, some 5 KiB.
struct CheckpointingReport {
  std::vector<Applied> applied;                    // Of each option that asks for something and can be refused.
  std::vector<std::string> blocks;                 // That may be computed again, in the order of the forward.
  std::vector<std::string> recomputed;             // Of them, those that are.
  std::optional<std::int64_t> saved_bytes_before;  // At the end of a forward that computes nothing again.
  std::optional<std::int64_t> saved_bytes_after;   // The same with those that are.
  std::optional<std::int64_t> peak_bytes;          // The most at once, with the block that has been computed again.
};

}  // namespace headrace
