#include "data/store/ram_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kAlignment = 64;
// The bound is the process's, whoever owns the caches, and so is this account.
std::atomic<std::int64_t> promised{0};

}  // namespace

// Followed by its bytes.
struct RamCache::Entry {
  std::int64_t size;
};

const RamCache::Entry RamCache::kBeingWritten{0};

std::int64_t RamCache::entry_bytes(std::int64_t size) noexcept {
  return (static_cast<std::int64_t>(sizeof(Entry)) + size + kAlignment - 1) / kAlignment * kAlignment;
}

RamCache::RamCache(std::int64_t keys, std::int64_t bytes_max, std::int64_t slab_bytes)
    : keys_(keys),
      bytes_max_(std::max(bytes_max, table_bytes())),
      slab_bytes_(slab_bytes),
      table_(std::make_unique<std::atomic<const Entry*>[]>(static_cast<std::size_t>(keys))),
      bytes_(table_bytes()),
      reserved_(table_bytes()) {
  promised.fetch_add(bytes_max_ - bytes_);
}

RamCache::~RamCache() {
  promised.fetch_sub(bytes_max_ - bytes_);
  for (const Slab& slab : slabs_) ::munmap(slab.start, static_cast<std::size_t>(slab.size));
}

std::int64_t RamCache::table_bytes() const noexcept {
  return keys_ * static_cast<std::int64_t>(sizeof(std::atomic<const Entry*>));
}

std::optional<std::span<const std::uint8_t>> RamCache::find(std::int64_t key) const noexcept {
  HEADRACE_CHECK(key >= 0 && key < keys_, "store: key {} of {}", key, keys_);
  const Entry* entry = table_[static_cast<std::size_t>(key)].load(std::memory_order_acquire);
  if (entry == nullptr || entry == &kBeingWritten) return std::nullopt;
  return std::span{reinterpret_cast<const std::uint8_t*>(entry + 1), static_cast<std::size_t>(entry->size)};
}

bool RamCache::has_room(std::int64_t size) const noexcept {
  const std::int64_t wanted = entry_bytes(size);
  std::lock_guard lock(mutex_);
  if (!slabs_.empty() && wanted <= slabs_.back().size - used_) return true;
  return !system_full_ && wanted <= bytes_max_ - reserved_;
}

bool RamCache::admit(std::int64_t key, std::initializer_list<std::span<const std::uint8_t>> parts) noexcept {
  HEADRACE_CHECK(key >= 0 && key < keys_, "store: key {} of {}", key, keys_);
  std::int64_t size = 0;
  for (const auto& part : parts) size += std::ssize(part);
  auto& place = table_[static_cast<std::size_t>(key)];
  Entry* entry = take(place, size);
  if (entry == nullptr) return false;
  auto* target = reinterpret_cast<std::uint8_t*>(entry + 1);  // Copied without the lock: others admit at the same time.
  for (const auto& part : parts) target = std::copy(part.begin(), part.end(), target);
  entries_.fetch_add(1, std::memory_order_relaxed);
  place.store(entry, std::memory_order_release);
  return true;
}

// Memory for an entry of `size` bytes, whose place is marked as taken; null when there is none.
RamCache::Entry* RamCache::take(std::atomic<const Entry*>& place, std::int64_t size) noexcept {
  const std::int64_t taken = entry_bytes(size);
  std::lock_guard lock(mutex_);
  if (place.load(std::memory_order_relaxed) != nullptr) return nullptr;
  const bool fits = !slabs_.empty() && taken <= slabs_.back().size - used_;
  if (!fits && !add_slab(taken)) return nullptr;
  auto* entry = new (slabs_.back().start + used_) Entry{size};
  used_ += taken;
  bytes_.fetch_add(taken, std::memory_order_relaxed);
  promised.fetch_sub(taken);
  place.store(&kBeingWritten, std::memory_order_relaxed);
  return entry;
}

// Makes a last slab with room for `size` bytes. What is left of the one before stays unused: at most one entry's size.
bool RamCache::add_slab(std::int64_t size) noexcept try {
  if (system_full_ || size > bytes_max_ - reserved_) return false;
  const std::int64_t slab = std::max(size, std::min(slab_bytes_, bytes_max_ - reserved_));
  slabs_.reserve(slabs_.size() + 1);
  void* start =
      ::mmap(nullptr, static_cast<std::size_t>(slab), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    system_full_ = true;
    return false;
  }
  slabs_.push_back({static_cast<std::byte*>(start), slab});
  reserved_ += slab;
  used_ = 0;
  return true;
} catch (const std::bad_alloc&) {
  system_full_ = true;
  return false;
}

std::int64_t RamCache::bytes() const noexcept {
  return bytes_.load(std::memory_order_relaxed);
}
std::int64_t RamCache::entries() const noexcept {
  return entries_.load(std::memory_order_relaxed);
}
std::int64_t RamCache::promised_bytes() noexcept {
  return promised.load();
}

}  // namespace headrace
