// What ModelOptions asks of activation checkpointing in a network.
#pragma once

#include <headrace/activation_checkpointing.h>
#include <headrace/options/model.h>

#include <string>
#include <vector>

namespace headrace {

// Error{invalid_argument} names the key: a number outside of its range, two choices of blocks at once, or what goes
// with blocks alone beside another kind.
CheckpointingRequest checkpointing_request(const ModelOptions& options);

// Which of these blocks a request for blocks takes to begin with: by name, every k-th, or all, as a budget does.
// Error{invalid_argument} for a name that is no block's and no block lies in: the nearest is told.
std::vector<bool> requested_blocks(const std::vector<std::string>& names, const CheckpointingRequest& request);

}  // namespace headrace
