#include "torch/tensor/tensor_memory.h"

#include <string>

#include "core/base/fail.h"
#include "torch/tensor/detail/allocator_place.h"

namespace headrace {
namespace {

constexpr const char* kDisplaced = "another allocator has taken LibTorch's place for one since";

// Why nobody counts; empty: somebody does.
std::string watch() {
  std::string reason = take_allocator_place();
  if (!reason.empty()) return reason;
  begin_counting();
  return counted_blocks() == nullptr ? kDisplaced : "";
}

}  // namespace

Applied watch_tensor_memory() {
  const std::string reason = watch();
  return {"tensor_memory", "counted", reason.empty() ? "counted" : "unavailable", reason};
}

void count_tensors(const NamedTensors& tensors) {
  if (counted_blocks() == nullptr) return;
  for (const auto& [name, tensor] : tensors) count_tensor(tensor);
}

std::int64_t tensor_bytes() {
  const CountedBlocks* blocks = counted_blocks();
  return blocks == nullptr ? -1 : blocks->held();
}

std::int64_t peak_tensor_bytes() {
  const CountedBlocks* blocks = counted_blocks();
  return blocks == nullptr ? -1 : blocks->peak();
}

void reset_peak_tensor_bytes() {
  if (CountedBlocks* blocks = counted_blocks()) blocks->reset_peak();
}

Applied set_tensor_memory_limit(std::int64_t bytes) {
  if (bytes < 0) {
    fail(ErrorCode::invalid_argument, "tensor: tensor_memory_limit: wanted bytes, or 0 for none, found {}", bytes);
  }
  Applied result{"tensor_memory_limit", std::to_string(bytes), std::to_string(bytes), ""};
  if (bytes > 0) result.reason = watch();
  if (!result.reason.empty()) {
    result.applied = "0";
    return result;
  }
  if (CountedBlocks* blocks = counted_blocks()) blocks->set_limit(bytes);
  return result;
}

std::int64_t tensor_memory_limit() {
  const CountedBlocks* blocks = counted_blocks();
  return blocks == nullptr ? 0 : blocks->limit();
}

}  // namespace headrace
