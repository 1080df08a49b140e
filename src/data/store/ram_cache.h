// Bytes by key, kept in memory until it is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace headrace {

// Admits until full and never evicts: for an order that is drawn anew each epoch no other rule hits more often. Entries
// lie one behind the other in slabs that go back to the system with the cache. Thread-safe; find() takes no lock.
class RamCache {
 public:
  // Keys are 0 .. keys - 1. `bytes_max` bounds slabs and the table of keys (8 bytes each, at once) together. Memory is
  // reserved a slab at a time and costs nothing until entries are written to it.
  RamCache(std::int64_t keys, std::int64_t bytes_max, std::int64_t slab_bytes = std::int64_t{64} << 20);
  ~RamCache();
  RamCache(const RamCache&) = delete;
  RamCache& operator=(const RamCache&) = delete;

  // Valid as long as the cache. nullopt: not here.
  std::optional<std::span<const std::uint8_t>> find(std::int64_t key) const noexcept;

  // Whether an entry of this size would be admitted now: worth asking before making one.
  bool has_room(std::int64_t size) const noexcept;

  // Copies the parts, one behind the other. False: there is no room, neither by the bound nor by the system, which is
  // not asked again once it refused; or the key is here already, or about to be.
  bool admit(std::int64_t key, std::initializer_list<std::span<const std::uint8_t>> parts) noexcept;

  std::int64_t bytes() const noexcept;  // Written to, the table included.
  std::int64_t entries() const noexcept;
  // Which bytes() may come to: what was asked for, or the table's, where that is more.
  std::int64_t bytes_max() const noexcept { return bytes_max_; }

  // What all caches of the process may still grow by. Resident memory does not show it, and the next cache must not
  // count on it.
  static std::int64_t promised_bytes() noexcept;

 private:
  struct Slab {
    std::byte* start;
    std::int64_t size;
  };
  struct Entry;
  static const Entry kBeingWritten;

  static std::int64_t entry_bytes(std::int64_t size) noexcept;
  Entry* take(std::atomic<const Entry*>& place, std::int64_t size) noexcept;
  bool add_slab(std::int64_t size) noexcept;
  std::int64_t table_bytes() const noexcept;

  const std::int64_t keys_;
  const std::int64_t bytes_max_;
  const std::int64_t slab_bytes_;
  const std::unique_ptr<std::atomic<const Entry*>[]> table_;  // Null: not here; kBeingWritten: not yet.
  std::atomic<std::int64_t> bytes_, entries_{0};

  mutable std::mutex mutex_;  // Guards everything below.
  std::vector<Slab> slabs_;
  std::int64_t reserved_;  // Of the bound: slabs and table.
  std::int64_t used_ = 0;  // Of the last slab.
  bool system_full_ = false;
};

}  // namespace headrace
