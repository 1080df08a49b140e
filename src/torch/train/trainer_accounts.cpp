#include "torch/train/trainer_accounts.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_set>

#include "torch/tensor/tensor_allocations.h"

namespace headrace {
namespace {

// Parameters and buffers, each storage once, however many of them share it.
std::int64_t bytes_of(const ModelState& model) {
  std::int64_t bytes = 0;
  std::unordered_set<const void*> known;
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const at::Storage& storage = tensor.storage();
      if (!storage.device().is_cpu()) continue;
      if (known.insert(storage.unsafeGetStorageImpl()).second) bytes += static_cast<std::int64_t>(storage.nbytes());
    }
  }
  return bytes;
}

std::int64_t read(const std::atomic<std::int64_t>& bytes) {
  return bytes.load(std::memory_order_relaxed);
}

}  // namespace

TrainerAccounts::TrainerAccounts(const ModelState& model, const NamedTensors& averages, bool keeps_state)
    : model_bytes_(bytes_of(model)),
      average_bytes_(bytes_of(averages)),
      model_account_("parameters", [this] { return model_bytes_; }),
      gradient_account_("gradients", [this] { return read(gradients); }),
      state_account_("optimizer", [this] { return read(state); }) {
  if (!averages.empty()) average_account_.emplace("averages", [this] { return average_bytes_; });
  if (keeps_state) kept_account_.emplace("last good state", [this] { return read(kept); });
  if (!TensorAllocations::bytes()) return;
  activation_account_.emplace("activations", [this] {
    const std::int64_t known = model_bytes_ + average_bytes_ + read(gradients) + read(state) + read(kept);
    return std::max<std::int64_t>(TensorAllocations::bytes().value_or(0) - known, 0);
  });
}

}  // namespace headrace
