#include "torch/tensor/detail/counted_blocks.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

// No system has as much: sums with it do not overflow.
constexpr std::size_t kBeyondAny = std::size_t{1} << 56;

[[noreturn]] void refuse(std::size_t asked, std::int64_t held, std::int64_t limit) {
  throw c10::OutOfMemoryError(
      {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
      fmt::format("out of memory: wanted {} bytes for a tensor, found a limit of {} bytes, of which {} are held", asked,
                  limit, held));
}

}  // namespace

CountedBlocks::Reservation::Reservation(CountedBlocks& blocks, std::size_t bytes)
    : blocks_(blocks), bytes_(static_cast<std::int64_t>(std::min(bytes, kBeyondAny))) {
  const std::int64_t limit = blocks.limit();
  std::int64_t held = blocks.held();
  do {
    if (limit > 0 && (held > limit || bytes > static_cast<std::size_t>(limit - held))) refuse(bytes, held, limit);
  } while (!blocks.held_.compare_exchange_weak(held, held + bytes_, std::memory_order_relaxed));
  held_with_it_ = held + bytes_;
}

CountedBlocks::Reservation::~Reservation() {
  blocks_.give_back(bytes_);
}

void CountedBlocks::Reservation::take_over(const void* block) {
  Shard& shard = blocks_.shard_of(block);
  std::int64_t stale = 0;  // Of a block that was freed where nobody counts, as by the system's own allocator.
  {
    const std::lock_guard lock(shard.mutex);
    const auto [entry, is_new] = shard.bytes.try_emplace(block, bytes_);
    if (!is_new) stale = std::exchange(entry->second, bytes_);
  }
  bytes_ = 0;
  blocks_.give_back(stale);
  blocks_.raise_peak(held_with_it_ - stale);  // Not before: what is asked for in vain was never held.
}

void CountedBlocks::add(const void* block, std::size_t bytes) {
  Shard& shard = shard_of(block);
  {
    const std::lock_guard lock(shard.mutex);
    if (!shard.bytes.try_emplace(block, static_cast<std::int64_t>(bytes)).second) return;
  }
  const auto more = static_cast<std::int64_t>(bytes);
  raise_peak(held_.fetch_add(more, std::memory_order_relaxed) + more);
}

std::int64_t CountedBlocks::forget(const void* block) noexcept {
  Shard& shard = shard_of(block);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.bytes.find(block);
  if (found == shard.bytes.end()) return 0;
  const std::int64_t bytes = found->second;
  shard.bytes.erase(found);
  return bytes;
}

std::int64_t CountedBlocks::bytes_of(const void* block) noexcept {
  Shard& shard = shard_of(block);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.bytes.find(block);
  return found == shard.bytes.end() ? 0 : found->second;
}

void CountedBlocks::lock_for_fork() {
  for (Shard& shard : shards_) shard.mutex.lock();
}

void CountedBlocks::unlock_after_fork() {
  for (Shard& shard : shards_) shard.mutex.unlock();
}

// By multiplication (Knuth, The Art of Computer Programming 3, 6.4): the low bits of aligned addresses are 0.
CountedBlocks::Shard& CountedBlocks::shard_of(const void* block) noexcept {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  static_assert(kShards == 32);  // Five bits.
  return shards_[(reinterpret_cast<std::uintptr_t>(block) * kGolden) >> 59];
}

void CountedBlocks::raise_peak(std::int64_t held) noexcept {
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (held > peak && !peak_.compare_exchange_weak(peak, held, std::memory_order_relaxed)) {
  }
}

}  // namespace headrace
