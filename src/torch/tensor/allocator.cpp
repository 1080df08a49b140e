#include "torch/tensor/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/memory/arena.h"

namespace headrace {
namespace {

constexpr std::size_t kFromArena = 16 * 1024;  // Bytes of a tensor, and more.

// LibTorch keeps a pointer to it for as long as there are tensors: never destroyed.
class ArenaAllocator final : public c10::Allocator {
 public:
  ArenaAllocator(c10::Allocator& system, std::size_t capacity) : system_(system), arena_(capacity) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= kFromArena && serves_.load(std::memory_order_relaxed)) {
      if (void* const block = arena_.allocate(bytes)) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &ArenaAllocator::end, c10::Device(c10::DeviceType::CPU)};
      }
    }
    try {
      return system_.allocate(bytes);
    } catch (const c10::Error&) {
      arena_.give_pages_back();  // They may be what is missing.
      return system_.allocate(bytes);
    }
  }

  // oneDNN's memory is freed by this alone, wherever it came from.
  c10::DeleterFnPtr raw_deleter() const override { return &ArenaAllocator::end; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  void serve(bool serves) {
    serves_ = serves;
    arena_.keep_pages(serves);
  }
  bool serves() const { return serves_.load(std::memory_order_relaxed); }
  Arena& arena() { return arena_; }

 private:
  static void end(void* block);

  c10::Allocator& system_;
  Arena arena_;
  std::atomic<bool> serves_{false};
};

std::atomic<ArenaAllocator*> installed{nullptr};

void ArenaAllocator::end(void* block) {
  ArenaAllocator& self = *installed.load(std::memory_order_relaxed);
  if (!self.arena_.owns(block)) {
    self.system_.raw_deallocate(block);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(block);
  self.arena_.free(block);
}

bool address_sanitizer_watches() {
  return ::dlsym(RTLD_DEFAULT, "__asan_region_is_poisoned") != nullptr;
}

// More than a process can hold, for what lies free between living blocks. Where addresses are limited, others need
// some, too.
std::size_t capacity_wanted() {
  struct sysinfo machine {};
  struct rlimit addresses {};
  ::sysinfo(&machine);
  ::getrlimit(RLIMIT_AS, &addresses);
  return std::min<std::size_t>(4 * static_cast<std::size_t>(machine.totalram) * machine.mem_unit,
                               addresses.rlim_cur == RLIM_INFINITY ? ~std::size_t{0} : addresses.rlim_cur / 4);
}

// Takes LibTorch's place for an allocator. Returns why it could not; empty: it did.
std::string install() {
  if (address_sanitizer_watches()) return "AddressSanitizer checks each block by itself";
  std::unique_ptr<ArenaAllocator> made;
  try {
    made = std::make_unique<ArenaAllocator>(*c10::GetCPUAllocator(), capacity_wanted());
  } catch (const Error& error) {
    return error.what();
  }
  installed = made.get();
  c10::SetCPUAllocator(made.get());
  if (c10::GetCPUAllocator() != made.get()) {
    installed = nullptr;
    return "another allocator has taken LibTorch's place for one with a higher priority";
  }
  static_cast<void>(made.release());
  ::pthread_atfork([] { installed.load()->arena().lock_for_fork(); },
                   [] { installed.load()->arena().unlock_after_fork(); },
                   [] {
                     installed.load()->arena().unlock_after_fork();
                     // Or each loader's worker would keep a copy of what its parent keeps for the next step.
                     installed.load()->arena().give_pages_back();
                   });
  return {};
}

bool is_in_force() {
  return installed != nullptr && installed.load()->serves() && c10::GetCPUAllocator() == installed.load();
}

}  // namespace

Applied apply_allocator(Allocator allocator) {
  const bool wants_arena = allocator == Allocator::arena;
  Applied result{"compute.allocator", std::string(choice_name(allocator)), "system", ""};
  if (wants_arena && installed == nullptr) result.reason = install();
  if (installed != nullptr && installed.load()->serves() != wants_arena) installed.load()->serve(wants_arena);
  if (is_in_force()) result.applied = "arena";
  if (wants_arena && result.applied != "arena" && result.reason.empty()) {
    result.reason = "another allocator has taken LibTorch's place for one since";
  }
  return result;
}

Allocator allocator_in_force() {
  return is_in_force() ? Allocator::arena : Allocator::system;
}

void map_large_blocks() {
  for (const char* own : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(own) != nullptr) return;
  }
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  ::mallopt(M_TRIM_THRESHOLD, 128 * 1024);
#endif
}

void give_freed_memory_back() {
  if (installed != nullptr) installed.load()->arena().give_pages_back();
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace headrace
