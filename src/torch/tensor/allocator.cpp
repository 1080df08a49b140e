#include "torch/tensor/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>

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
#include "torch/tensor/detail/allocator_place.h"

namespace headrace {
namespace {

constexpr std::size_t kFromArena = 16 * 1024;  // Bytes of a tensor, and more.

// LibTorch keeps a pointer to it for as long as there are tensors: never destroyed.
class ArenaAllocator final : public c10::Allocator {
 public:
  ArenaAllocator(c10::Allocator& system, std::size_t capacity) : system_(system), arena_(capacity) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0 || !counts_.load(std::memory_order_relaxed)) return get(bytes);
    CountedBlocks::Reservation reserved(blocks_, bytes);
    c10::DataPtr block = get(bytes);
    if (ends_here(block)) reserved.take_over(block.get());
    return block;
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

  void count() { counts_ = true; }
  bool counts() const { return counts_.load(std::memory_order_relaxed); }
  CountedBlocks& blocks() { return blocks_; }

  void count_block(c10::DataPtr& block, std::size_t bytes) {
    if (bytes > 0 && block.device().is_cpu() && ends_here(block)) blocks_.add(block.get(), bytes);
  }

 private:
  c10::DataPtr get(std::size_t bytes) {
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

  // Has a block end by end(), which counts it off; the deleters of the system's tell nobody. False: it is neither's.
  bool ends_here(c10::DataPtr& block) const {
    if (block.get() == nullptr || block.get() != block.get_context()) return false;
    return block.get_deleter() == &ArenaAllocator::end ||
           block.compare_exchange_deleter(system_.raw_deleter(), &ArenaAllocator::end);
  }

  static void end(void* block);

  c10::Allocator& system_;
  Arena arena_;
  CountedBlocks blocks_;
  std::atomic<bool> serves_{false}, counts_{false};
};

std::atomic<ArenaAllocator*> installed{nullptr};

void ArenaAllocator::end(void* block) {
  ArenaAllocator& self = *installed.load(std::memory_order_relaxed);
  const std::int64_t counted = self.counts() ? self.blocks_.forget(block) : 0;
  if (self.arena_.owns(block)) {
    c10::profiledCPUMemoryReporter().Delete(block);
    self.arena_.free(block);
  } else {
    self.system_.raw_deallocate(block);
  }
  if (counted > 0) self.blocks_.give_back(counted);
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

bool holds_the_place() {
  return installed != nullptr && c10::GetCPUAllocator() == installed.load();
}

bool is_in_force() {
  return holds_the_place() && installed.load()->serves();
}

}  // namespace

std::string take_allocator_place() {
  if (installed != nullptr) return {};
  std::unique_ptr<ArenaAllocator> made;
  try {
    made = std::make_unique<ArenaAllocator>(*c10::GetCPUAllocator(), capacity_wanted());
  } catch (const Error& error) {
    return error.what();
  }
  installed = made.get();
  c10::SetCPUAllocator(made.get());
  if (!holds_the_place()) {
    installed = nullptr;
    return "another allocator has taken LibTorch's place for one with a higher priority";
  }
  static_cast<void>(made.release());
  ::pthread_atfork(
      [] {
        installed.load()->blocks().lock_for_fork();
        installed.load()->arena().lock_for_fork();
      },
      [] {
        installed.load()->arena().unlock_after_fork();
        installed.load()->blocks().unlock_after_fork();
      },
      [] {
        installed.load()->arena().unlock_after_fork();
        installed.load()->blocks().unlock_after_fork();
        // It is one of its parent's tensors, of which a loader's worker has inherited the count.
        installed.load()->blocks().set_limit(0);
        // Or each loader's worker would keep a copy of what its parent keeps for the next step.
        installed.load()->arena().give_pages_back();
      });
  return {};
}

void begin_counting() {
  installed.load()->count();
}

CountedBlocks* counted_blocks() {
  return holds_the_place() && installed.load()->counts() ? &installed.load()->blocks() : nullptr;
}

void count_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) return;  // Whoever shares it ends it.
  installed.load()->count_block(storage._mutable_data_ptr_no_checks(), storage.nbytes());
}

Applied apply_allocator(Allocator allocator) {
  const bool wants_arena = allocator == Allocator::arena;
  Applied result{"compute.allocator", std::string(choice_name(allocator)), "system", ""};
  const bool may_serve = wants_arena && !address_sanitizer_watches();
  if (may_serve) {
    result.reason = take_allocator_place();
  } else if (wants_arena) {
    result.reason = "AddressSanitizer checks each block by itself";
  }
  if (installed != nullptr && installed.load()->serves() != may_serve) installed.load()->serve(may_serve);
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
