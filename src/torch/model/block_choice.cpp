#include "torch/model/detail/block_choice.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

// Kept of a block when the forward ends.
std::int64_t kept_of(const SavedBytes& bytes, const std::vector<bool>& recomputed, std::size_t block) {
  if (!recomputed[block]) return bytes.blocks[block].saved;
  const bool is_last = block + 1 == recomputed.size();
  return is_last || bytes.inputs_on_device || !recomputed[block + 1] ? bytes.blocks[block].output : 0;
}

// Kept beside the blocks, and of the first one's input.
std::int64_t kept_before(const SavedBytes& bytes, const std::vector<bool>& recomputed) {
  const bool keeps_input = bytes.inputs_on_device || recomputed.empty() || !recomputed.front();
  return bytes.outside + (keeps_input ? bytes.input : 0);
}

// The input of a block that lies in the host's memory comes back for it.
std::int64_t returned_input(const SavedBytes& bytes, std::size_t block) {
  if (bytes.inputs_on_device) return 0;
  return block == 0 ? bytes.input : bytes.blocks[block - 1].output;
}

// By the bytes that each frees, the most first; without those that free nothing.
std::vector<std::size_t> by_freed_bytes(const std::vector<BlockBytes>& blocks) {
  const auto freed = [&](std::size_t block) { return blocks[block].saved - blocks[block].output; };
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t block) { return freed(block) <= 0; });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return freed(a) > freed(b); });
  return order;
}

}  // namespace

std::int64_t bytes_at_end(const SavedBytes& bytes, const std::vector<bool>& recomputed) {
  std::int64_t held = kept_before(bytes, recomputed);
  for (std::size_t i = 0; i < recomputed.size(); ++i) held += kept_of(bytes, recomputed, i);
  return held;
}

std::int64_t peak_bytes(const SavedBytes& bytes, const std::vector<bool>& recomputed) {
  std::int64_t held = kept_before(bytes, recomputed), most = held;
  for (std::size_t i = 0; i < recomputed.size(); ++i) {
    if (recomputed[i]) most = std::max(most, held + returned_input(bytes, i) + bytes.blocks[i].saved);
    held += kept_of(bytes, recomputed, i);
  }
  return std::max(most, held);
}

BlockChoice choose_blocks(const SavedBytes& bytes, std::int64_t budget) {
  const auto choice = [&](std::vector<bool> recomputed) {
    const std::int64_t peak = peak_bytes(bytes, recomputed);
    return BlockChoice{std::move(recomputed), peak, peak <= budget};
  };
  std::vector<bool> chosen(bytes.blocks.size(), false);
  BlockChoice best = choice(chosen);
  for (const std::size_t block : by_freed_bytes(bytes.blocks)) {
    if (best.fits) break;
    chosen[block] = true;
    BlockChoice tried = choice(chosen);
    if (tried.peak_bytes < best.peak_bytes) best = std::move(tried);
  }
  // One that went first may turn out not to be needed.
  for (std::size_t block = 0; block < chosen.size(); ++block) {
    if (!best.recomputed[block]) continue;
    std::vector<bool> fewer = best.recomputed;
    fewer[block] = false;
    BlockChoice tried = choice(std::move(fewer));
    if (tried.fits || (!best.fits && tried.peak_bytes <= best.peak_bytes)) best = std::move(tried);
  }
  return best;
}

}  // namespace headrace
