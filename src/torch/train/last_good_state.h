// The state that a rollback returns to.
#pragma once

#include <headrace/trainer.h>

#include <cstdint>
#include <functional>

#include "torch/tensor/safetensors.h"

namespace headrace {

inline constexpr const char* kLossScale = "loss_scale";  // The scale, and its good updates: double [2].

// What a rollback puts back. Refers to a trainer's.
struct RolledBack {
  const ModelState& model;
  const NamedTensors& averages;
  Optimizer& optimizer;
  const ExternalOptimizer& external;
  Progress& progress;  // Its loss scale; all else goes on.
  const OtherGenerators& generators;

  c10::Device device() const {
    return model.parameters.empty() ? c10::Device(c10::DeviceType::CPU) : model.parameters.front().second.device();
  }
};

// Copies of tensors by name, with the states of all generators, and what puts an external optimizer's state back. Not
// thread-safe.
class LastGoodState {
 public:
  // Whether there is one, and of the optimizer that makes the updates now.
  bool is_of(const ExternalOptimizer& external) const;
  // Of present values; in the memory of the last ones where names and shapes are the same.
  // Error{invalid_argument}: an external optimizer without keep_state.
  void keep(const RolledBack& of);
  // Each tensor keeps its layout. Optimizer state without a copy was made since, as momentum that was switched on: it
  // becomes 0, as a new one is.
  void restore(const RolledBack& of) const;
  // Puts these in their place, of an optimizer that is not external; they are not copied. None: nothing is kept.
  void set(NamedTensors copies);

  const NamedTensors& copies() const { return copies_; }
  std::int64_t bytes() const { return bytes_of(copies_); }

 private:
  NamedTensors copies_;
  std::function<void()> put_back_external_;  // Of the same moment.
};

}  // namespace headrace
