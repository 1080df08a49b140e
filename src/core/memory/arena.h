// Large blocks of memory whose pages stay when they are freed, for the tensors of a training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace headrace {

// One reserved range of addresses, given out by best fit: the smallest free range that holds a block, of equal ones
// the lowest; what is freed joins its free neighbours (Knuth, The Art of Computer Programming 1, 2.5). Every step of a
// training loop asks for the same blocks in the same order, so that after the first ones it meets pages that are
// mapped already, and what the process holds no longer grows: nothing else lives between the blocks. Reserved
// addresses hold no memory and count against no limit but that of addresses (RLIMIT_AS); what was ever given out does,
// in huge pages where the system has them (MADV_HUGEPAGE).
//
// Thread-safe. An allocation or a free takes some 0.1 us under one lock; meant for blocks of many KiB.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  // Of every block: a cache line, and the widest vector register.

  struct Statistics {
    std::size_t held = 0;       // Bytes given out now, each block rounded up to kAlignment.
    std::size_t most_held = 0;  // The most of it so far.
    std::size_t reached = 0;    // Bytes from the arena's front to the end of the furthest block ever given out.
    std::size_t free_ranges = 0;
  };

  // Reserves the addresses, or as many as the system allows: capacity() tells. Error{out_of_memory}: it allows none.
  explicit Arena(std::size_t capacity);
  ~Arena();  // Every block must be free again.
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // At a multiple of kAlignment, of unknown content. nullptr where `bytes` is 0, or no free range holds them, or the
  // system has no memory for them. It and free() end the process where there is none for the arena's books.
  void* allocate(std::size_t bytes) noexcept;
  void free(void* block) noexcept;  // One of this arena's that is not free.

  // Whether an address lies in the reserved range.
  bool owns(const void* address) const;

  // What freed blocks leave from now on: true, the state at first: their pages stay; false: they go back to the system,
  // whole pages of them, with what was kept before.
  void keep_pages(bool keep);
  // Gives back the pages of all that is free. Each costs its next user a page fault.
  void give_pages_back();

  Statistics statistics() const;
  std::size_t capacity() const { return capacity_; }  // In bytes.

  // For pthread_atfork: a child must not inherit a lock that another thread held.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  using Address = std::uintptr_t;

  // Joined with its free neighbours; returns where that begins and ends.
  std::pair<Address, Address> add_free(Address begin, std::size_t bytes);
  bool reach_further(std::size_t bytes);
  void give_back(Address begin, std::size_t bytes) const;

  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::size_t capacity_ = 0;
  Address base_ = 0;  // The first of reserved_ that begins a huge page.

  mutable std::mutex mutex_;  // Guards everything below.
  Address end_ = 0;           // Of what was ever given out.
  Address usable_end_ = 0;    // What lies before may be read and written.
  bool keeps_pages_ = true;
  Statistics statistics_;
  std::unordered_map<Address, std::size_t> blocks_;  // Given out, with their bytes.
  std::map<Address, std::size_t> free_by_address_;   // Between base_ and end_; no two touch.
  std::set<std::pair<std::size_t, Address>> free_by_size_;
};

}  // namespace headrace
