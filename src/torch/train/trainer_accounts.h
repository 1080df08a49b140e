// Memory accounts of a Trainer.
#pragma once

#include <headrace/model_state.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/memory/accounts.h"
#include "torch/tensor/safetensors.h"

namespace headrace {

// "parameters", "gradients", "optimizer"; with averages "averages", with a state to roll back to "last good state";
// where tensors are counted "activations", which are all others. One thread writes the bytes, any thread may ask.
class TrainerAccounts {
 public:
  TrainerAccounts(const ModelState& model, const NamedTensors& averages, bool keeps_state);

  std::atomic<std::int64_t> gradients{0}, state{0}, kept{0};

 private:
  const std::int64_t model_bytes_, average_bytes_;
  const Account model_account_, gradient_account_, state_account_;
  std::optional<Account> average_account_, kept_account_, activation_account_;
};

}  // namespace headrace
