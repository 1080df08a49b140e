// Which blocks to compute again so that what is kept for the backward fits into a budget. Needs no LibTorch.
//
// Trading a forward for memory is Chen et al. 2016 (arXiv 1604.06174). The choice is greedy, by the bytes that a block
// frees and not by seconds: blocks of one of our networks take about as long as each other, and a choice by a clock
// would differ from process to process.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

// Bytes of a block. `saved`: what its graph and its output hold. `output`: of its output alone, which is the input of
// the next block; of the last block 0 where nothing keeps it.
struct BlockBytes {
  std::int64_t saved, output;
};

// Of a training forward, a chain of blocks.
struct SavedBytes {
  std::vector<BlockBytes> blocks;
  std::int64_t outside = 0;      // Kept beside the blocks.
  std::int64_t input = 0;        // Of the first block's input; 0 where `outside` has it.
  bool inputs_on_device = true;  // False: inputs of blocks that are computed again lie in the host's memory.
};

// Kept when the forward ends and these blocks are to be computed again.
std::int64_t bytes_at_end(const SavedBytes& bytes, const std::vector<bool>& recomputed);
// The most at once, where the backward goes through the blocks from the last to the first: at the end of the forward,
// or when a block has been computed again and those before it wait. Gradients are not counted.
std::int64_t peak_bytes(const SavedBytes& bytes, const std::vector<bool>& recomputed);

struct BlockChoice {
  std::vector<bool> recomputed;
  std::int64_t peak_bytes;
  bool fits;  // That is within the budget.
};
// As few blocks as a budget asks for, those first that free the most bytes, the earlier of equal ones; or, where none
// fits, the fewest for the least bytes that were found.
BlockChoice choose_blocks(const SavedBytes& bytes, std::int64_t budget);

}  // namespace headrace
