// What the blocks of CPU tensors hold together, and the most that they may.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace headrace {

// Bytes of blocks by their address, as they were asked for. Thread-safe; never destroyed while blocks live. A block
// costs two short locks, which threads share where their addresses fall together: some 0.1 us.
class CountedBlocks {
 public:
  // Bytes that are counted before their block is there, so that two threads cannot pass the limit together. Taken back
  // at the end of its life unless a block has taken them over.
  class Reservation {
   public:
    // c10::OutOfMemoryError, which names asked, held and limit: they would pass the limit.
    Reservation(CountedBlocks& blocks, std::size_t bytes);
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    // In the place of what was counted at this address before. std::bad_alloc: there is no memory for the books.
    void take_over(const void* block);

   private:
    CountedBlocks& blocks_;
    std::int64_t bytes_;
    std::int64_t held_with_it_ = 0;
  };

  // Counts a block that is there already, also beyond the limit. Nothing happens where it is counted.
  void add(const void* block, std::size_t bytes);
  // Forgets a block, before anybody can get its address anew. Returns its bytes, which are held until give_back();
  // 0: it was not counted.
  std::int64_t forget(const void* block) noexcept;
  std::int64_t bytes_of(const void* block) noexcept;  // 0: it is not counted.
  void give_back(std::int64_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::int64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }
  std::int64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() noexcept { peak_.store(held(), std::memory_order_relaxed); }
  std::int64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  void set_limit(std::int64_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }  // 0: none.

  // For pthread_atfork: a child must not inherit a lock that another thread held.
  void lock_for_fork();
  void unlock_after_fork();

 private:
  static constexpr std::size_t kShards = 32;  // More than threads that allocate at once.
  struct alignas(64) Shard {
    std::mutex mutex;  // Guards the bytes.
    std::unordered_map<const void*, std::int64_t> bytes;
  };

  Shard& shard_of(const void* block) noexcept;
  void raise_peak(std::int64_t held) noexcept;

  std::atomic<std::int64_t> held_{0}, peak_{0}, limit_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace headrace
