// The state that a rollback returns to.
#pragma once

#include <cstdint>
#include <utility>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Copies of tensors by name. Not thread-safe.
class LastGoodState {
 public:
  bool empty() const { return copies_.empty(); }
  // Of present values; in the memory of the last ones where names and shapes are the same.
  void keep(const NamedTensors& tensors);
  // Puts them into tensors of the same names, each of which keeps its layout. One without a copy is state that was made
  // since, as momentum that was switched on: it becomes 0, as a new one is.
  void restore(const NamedTensors& tensors) const;
  // Puts these in their place; they are not copied.
  void set(NamedTensors copies) { copies_ = std::move(copies); }

  const NamedTensors& copies() const { return copies_; }
  std::int64_t bytes() const { return bytes_of(copies_); }

 private:
  NamedTensors copies_;
};

}  // namespace headrace
