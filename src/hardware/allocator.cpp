#include "hardware/allocator.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

struct Thresholds {
  std::size_t mmap;  // Blocks from this size on are mapped one by one, and unmapped when freed.
  std::size_t trim;  // Free memory at the top of the heap above this goes back to the system.
  std::size_t pad;   // Taken from the system beyond what is asked for.
};

// glibc's values at the start of a process, and how far the first grows by itself (mallopt(3)).
constexpr Thresholds kInitial{128 * 1024, 128 * 1024, 128 * 1024};
constexpr std::size_t kGrownMax = 32 * 1024 * 1024;
constexpr std::size_t kPage = 4096;
constexpr Thresholds kNoTrim{std::size_t{1} << 30, ~std::size_t{0}, 64 * 1024 * 1024};

// What was in force before the first no_trim. Setting any threshold ends their growth in this process for good, so
// that going back means going back to these.
std::optional<Thresholds> before_no_trim;
bool no_trim_is_on = false;
std::uintptr_t end_before_no_trim = 0;  // Of what the main heap held then.

// Blocks that nobody uses, each with the address of the one before it in its first bytes: a list of them elsewhere
// would itself take a place in the heap.
class Row {
 public:
  void add(void* block) {
    std::memcpy(block, &last_, sizeof last_);
    last_ = block;
  }
  void free_all() {
    while (last_ != nullptr) {
      void* const block = last_;
      std::memcpy(&last_, block, sizeof last_);
      std::free(block);
    }
  }

 private:
  void* last_ = nullptr;
};

// While system is in force: what is free in the part of the main heap that no_trim made, so that nobody is served
// there.
Row plugs;

// Whether glibc's own books show a block that malloc gave.
bool glibc_counts_blocks() {
  constexpr std::size_t kSize =
      2 * kGrownMax;  // Mapped, whatever the threshold has grown to; its pages stay untouched.
  const auto in_use = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::size_t before = in_use();
  void* volatile block = std::malloc(kSize);  // Volatile, or the compiler leaves both calls out.
  const std::size_t after = in_use();
  std::free(block);
  return block != nullptr && after >= before + kSize / 2;  // Other threads may free a little meanwhile.
}

// The library that malloc comes from, when that is not glibc.
std::optional<std::string> foreign_malloc() {
  Dl_info allocator{}, glibc{};
  void* const version = ::dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
  if (version == nullptr || ::dladdr(version, &glibc) == 0) return "a C library other than glibc";
  void* const malloc_found = ::dlsym(RTLD_DEFAULT, "malloc");
  void* symbol = nullptr;
  if (malloc_found == nullptr || ::dladdr1(malloc_found, &allocator, &symbol, RTLD_DL_SYMENT) == 0) {
    return "an unknown library";
  }
  // A program that is not position-independent, as Debian's python3, has a stub of its own at the address that all
  // libraries take for malloc; it does not tell whose malloc it goes on to.
  const auto* entry = static_cast<const ElfW(Sym)*>(symbol);
  if (entry != nullptr && entry->st_shndx == SHN_UNDEF) {
    if (glibc_counts_blocks()) return std::nullopt;
    return "a library other than glibc";
  }
  if (allocator.dli_fbase == glibc.dli_fbase) return std::nullopt;
  return allocator.dli_fname;
}

// Bits of the size field before a block of glibc (malloc/malloc.c).
constexpr std::size_t kMapped = 2, kOfOtherHeap = 4;
bool has(const void* block, std::size_t bits) {
  return (static_cast<const std::size_t*>(block)[-1] & bits) != 0;
}
bool is_mapped(const void* block) {
  return has(block, kMapped);
}

// Without what is free at its end.
std::uintptr_t end_of_main_heap() {
  return reinterpret_cast<std::uintptr_t>(::sbrk(0)) - ::mallinfo2().keepcost;
}

bool set(const Thresholds& wanted) {
  // An int that is converted back: -1 is the largest size_t.
  return ::mallopt(M_TOP_PAD, static_cast<int>(wanted.pad)) == 1 &&
         ::mallopt(M_TRIM_THRESHOLD, static_cast<int>(wanted.trim)) == 1 &&
         ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(wanted.mmap)) == 1;
}

// Nothing tells the threshold from which blocks are mapped, so blocks of several sizes are asked for. glibc must have
// stopped growing it before: freeing a mapped block raises it otherwise.
std::size_t probe_mmap_threshold() {
  std::size_t below = kInitial.mmap / 2, above = kGrownMax + kPage;
  std::vector<void*> blocks;
  while (above - below > kPage) {
    const std::size_t size = below + (above - below) / 2;
    // Volatile, because the compiler knows malloc and takes the field before the block for out of bounds.
    void* volatile allocated = std::malloc(size);
    void* const block = allocated;
    if (block == nullptr) break;
    (is_mapped(block) ? above : below) = size;
    blocks.push_back(block);
  }
  for (void* block : blocks) std::free(block);
  return above;
}

Thresholds freeze_thresholds() {
  ::mallopt(M_TOP_PAD, static_cast<int>(kInitial.pad));
  std::size_t mmap = 0;
  // On a thread of its own, whose heap holds no free block that would serve a size which is otherwise mapped.
  std::thread([&mmap] { mmap = probe_mmap_threshold(); }).join();
  if (mmap <= kInitial.mmap + kPage) return kInitial;
  return {mmap, 2 * mmap, kInitial.pad};  // glibc keeps the two in this proportion.
}

// Of the biggest first, blocks that fill what is free behind end_before_no_trim. What no free range holds is mapped,
// and so tells the end. No page of them is touched but the first of each.
void plug_free_ranges() {
  const std::uintptr_t end = end_of_main_heap();
  if (end <= end_before_no_trim) return;
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kInitial.mmap));
  Row older;  // Held until the end, or they would be given again and again.
  for (std::size_t size = std::bit_floor(end - end_before_no_trim); size >= kInitial.mmap; size /= 2) {
    while (true) {
      // Volatile, because the compiler knows malloc and takes the field before the block for out of bounds.
      void* volatile allocated = std::malloc(size);
      void* const block = allocated;
      if (block == nullptr) break;
      // Beyond the end: the system maps no more blocks, and the heap would grow without one.
      if (has(block, kMapped | kOfOtherHeap) || reinterpret_cast<std::uintptr_t>(block) >= end) {
        std::free(block);
        break;
      }
      (reinterpret_cast<std::uintptr_t>(block) >= end_before_no_trim ? plugs : older).add(block);
    }
  }
  older.free_all();
}

bool begin_no_trim() {
  if (!before_no_trim) {
    before_no_trim = freeze_thresholds();
    end_before_no_trim = end_of_main_heap();
  }
  if (!set(kNoTrim)) {
    set(*before_no_trim);
    return false;
  }
  plugs.free_all();  // Now that freeing gives nothing back to the system.
  return true;
}

bool end_no_trim() {
  ::malloc_trim(0);  // First: what is free at the end of the heap needs no plug then.
  plug_free_ranges();
  return set(*before_no_trim);
}

}  // namespace

Applied apply_allocator(Allocator allocator) {
  const bool wants_no_trim = allocator == Allocator::no_trim;
  Applied result{"compute.allocator", wants_no_trim ? "no_trim" : "system", "system", ""};
  if (const auto library = foreign_malloc()) {
    if (wants_no_trim) result.reason = fmt::format("malloc comes from {}, not from glibc", *library);
    return result;
  }
  if (wants_no_trim && !no_trim_is_on) {
    no_trim_is_on = begin_no_trim();
    if (!no_trim_is_on) result.reason = "mallopt refused";
  } else if (!wants_no_trim && no_trim_is_on) {
    no_trim_is_on = !end_no_trim();
    if (no_trim_is_on) result.reason = "mallopt refused";
  }
  if (no_trim_is_on) result.applied = "no_trim";
  return result;
}

void give_freed_memory_back() {
  if (!no_trim_is_on && !foreign_malloc()) ::malloc_trim(0);
}

}  // namespace headrace
