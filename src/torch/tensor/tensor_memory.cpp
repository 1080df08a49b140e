#include "torch/tensor/tensor_memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <map>
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

// The tensors that its memory lies in.
std::vector<at::Tensor> strided_parts(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.layout() != at::kSparse) return {tensor};
  const at::AutoDispatchBelowADInplaceOrView no_views;  // Of the parts, which would lie in their memory, too.
  return {tensor._indices(), tensor._values()};
}

}  // namespace

Applied watch_tensor_memory() {
  const std::string reason = watch();
  return {"tensor_memory", "counted", reason.empty() ? "counted" : "unavailable", reason};
}

void count_tensors(const NamedTensors& tensors) {
  if (counted_blocks() == nullptr) return;
  for (const auto& [name, tensor] : tensors) {
    for (const at::Tensor& part : strided_parts(tensor)) count_tensor(part);
  }
}

std::int64_t bytes_of_these_alone(const std::vector<at::Tensor>& tensors) {
  CountedBlocks* blocks = counted_blocks();
  if (blocks == nullptr) return 0;
  struct Holders {
    std::size_t these = 0, all = 0;
  };
  std::map<const c10::StorageImpl*, Holders> storages;
  for (const at::Tensor& tensor : tensors) {
    for (const at::Tensor& part : strided_parts(tensor)) {
      if (!part.has_storage()) continue;
      Holders& holders = storages[part.storage().unsafeGetStorageImpl()];
      ++holders.these;
      holders.all = part.storage().use_count();
    }
  }
  std::int64_t bytes = 0;
  for (const auto& [storage, holders] : storages) {
    if (holders.these == holders.all) bytes += blocks->bytes_of(storage->data());
  }
  return bytes;
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
