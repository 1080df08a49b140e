// Bytes that a thread allocates and frees for tensors on the CPU, told apart from those of other threads.
#pragma once

#include <cstdint>

namespace headrace {

// While one lives, its thread and the backward passes that it starts count what each of them allocates and frees, as
// LibTorch's allocator reports it to profilers. Made and ended by one thread, in any order. What was allocated before
// is not taken off when it is freed, and what another thread frees is taken off there. Each allocation and each free
// then pays for a lock and a lookup in LibTorch, some 0.1 us.
class ThreadMemory {
 public:
  // Error{unsupported}: a PyTorch profiler runs on this thread; LibTorch reports to one at a time.
  ThreadMemory();
  ~ThreadMemory();
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;
};

// Allocated less freed by the calling thread while anybody counted on it; only differences mean something.
std::int64_t thread_bytes() noexcept;

// What a stretch of its thread's work keeps and needs. Made and ended as a ThreadMemory; scopes nest. Of one that ends
// before a scope within it, the peak may count for that one, too.
class MemoryScope {
 public:
  MemoryScope();  // The same Error.
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  // Since construction, in bytes, on its own thread: allocated less freed, and the most that this ever was, at least 0.
  std::int64_t net_bytes() const noexcept;
  std::int64_t peak_bytes() const noexcept;

 private:
  ThreadMemory counting_;
  std::int64_t start_;
  std::int64_t peak_before_;  // Of the scope around it.
};

}  // namespace headrace
