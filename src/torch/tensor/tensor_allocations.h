// The bytes that CPU tensors hold, counted as LibTorch's allocator reports them.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>

namespace headrace {

// Counts what its thread, and the backward passes that it starts, allocate and free for tensors on the CPU, from
// construction to destruction. What was allocated before is not counted, nor taken off when it is freed. One at a time
// in a process; it takes the place of a PyTorch profiler. Each allocation and each free then pays for a lock and a
// lookup in LibTorch, some 0.1 us.
class TensorAllocations {
 public:
  TensorAllocations();
  ~TensorAllocations();
  TensorAllocations(const TensorAllocations&) = delete;
  TensorAllocations& operator=(const TensorAllocations&) = delete;

  // Held now; nullopt: nobody counts. Any thread.
  static std::optional<std::int64_t> bytes();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace headrace
