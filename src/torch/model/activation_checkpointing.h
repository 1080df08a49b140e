// What is asked of activation checkpointing in a network, and what is in force.
#pragma once

#include <headrace/error.h>
#include <headrace/options/model.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// The options of ModelOptions that begin with checkpoint_, and their meaning.
struct CheckpointingRequest {
  ActivationCheckpointing kind = ActivationCheckpointing::none;
  std::int64_t every = 1;             // Of so many blocks one after the other the first; at least 1.
  std::vector<std::string> blocks{};  // These alone, or all in what they name; empty: all.
  double budget_mib = 0.0;            // 0: none.
  CheckpointOffload offload = CheckpointOffload::none;
};

// Error{invalid_argument} names the key: a number outside of its range, two choices of blocks at once, or what goes
// with blocks alone beside another kind.
CheckpointingRequest checkpointing_request(const ModelOptions& options);

// Which of these blocks a request for blocks takes to begin with: by name, every k-th, or all, as a budget does.
// Error{invalid_argument} for a name that is no block's and no block lies in: the nearest is told.
std::vector<bool> requested_blocks(const std::vector<std::string>& names, const CheckpointingRequest& request);

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
