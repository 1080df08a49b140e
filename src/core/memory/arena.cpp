#include "core/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::size_t kLeastCapacity = std::size_t{64} << 20;
constexpr std::size_t kGrowth = std::size_t{32} << 20;   // Made usable at once.
constexpr std::size_t kHugePage = std::size_t{2} << 20;  // Of x86-64; elsewhere as good an alignment as another.

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

constexpr std::size_t rounded_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

void* memory_at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): an address of our own range.
}

}  // namespace

Arena::Arena(std::size_t capacity) {
  capacity = rounded_up(std::max(capacity, kLeastCapacity), kGrowth);
  for (;; capacity = rounded_up(capacity / 2, kGrowth)) {
    reserved_bytes_ = capacity + kHugePage;
    // Without MAP_NORESERVE: what mprotect makes usable is charged then, and refused where a machine has not as much.
    reserved_ = ::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved_ != MAP_FAILED) break;
    if (capacity == kLeastCapacity) {
      fail(ErrorCode::out_of_memory, "memory: {} bytes of addresses: {}", reserved_bytes_, std::strerror(errno));
    }
  }
  capacity_ = capacity;
  base_ = end_ = usable_end_ = rounded_up(reinterpret_cast<Address>(reserved_), kHugePage);
}

Arena::~Arena() {
  HEADRACE_CHECK(blocks_.empty(), "an arena ends before {} of its blocks", blocks_.size());
  ::munmap(reserved_, reserved_bytes_);
}

void* Arena::allocate(std::size_t bytes) noexcept {
  if (bytes == 0 || bytes > capacity_) return nullptr;
  bytes = rounded_up(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  auto found = free_by_size_.lower_bound({bytes, 0});
  if (found == free_by_size_.end()) {
    if (!reach_further(bytes)) return nullptr;
    found = free_by_size_.lower_bound({bytes, 0});
  }
  const auto [range, begin] = *found;
  blocks_.emplace(begin, bytes);
  free_by_size_.erase(found);
  free_by_address_.erase(begin);
  if (range > bytes) add_free(begin + bytes, range - bytes);
  statistics_.held += bytes;
  statistics_.most_held = std::max(statistics_.most_held, statistics_.held);
  return memory_at(begin);
}

void Arena::free(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<Address>(block));
  HEADRACE_CHECK(found != blocks_.end(), "{} is no block of this arena", block);
  const auto [begin, bytes] = *found;
  blocks_.erase(found);
  statistics_.held -= bytes;
  const auto [joined_begin, joined_end] = add_free(begin, bytes);
  if (keeps_pages_) return;
  // Also the pages that it shared with free neighbours.
  const Address first = std::max(joined_begin, begin / page_bytes() * page_bytes());
  give_back(first, std::min(joined_end, rounded_up(begin + bytes, page_bytes())) - first);
}

bool Arena::owns(const void* address) const {
  return reinterpret_cast<Address>(address) - base_ < capacity_;
}

void Arena::keep_pages(bool keep) {
  {
    const std::lock_guard lock(mutex_);
    keeps_pages_ = keep;
  }
  if (!keep) give_pages_back();
}

void Arena::give_pages_back() {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, bytes] : free_by_address_) give_back(begin, bytes);
}

Arena::Statistics Arena::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics now = statistics_;
  now.reached = end_ - base_;
  now.free_ranges = free_by_address_.size();
  return now;
}

// The lock is held in all that follow.

std::pair<Arena::Address, Arena::Address> Arena::add_free(Address begin, std::size_t bytes) {
  const auto next = free_by_address_.lower_bound(begin);
  if (next != free_by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      bytes += before->second;
      free_by_size_.erase({before->second, before->first});
      free_by_address_.erase(before);
    }
  }
  if (next != free_by_address_.end() && begin + bytes == next->first) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    free_by_address_.erase(next);
  }
  free_by_address_.emplace(begin, bytes);
  free_by_size_.emplace(bytes, begin);
  return {begin, begin + bytes};
}

// So that the last free range holds `bytes`.
bool Arena::reach_further(std::size_t bytes) {
  std::size_t missing = bytes;
  if (!free_by_address_.empty()) {
    const auto last = std::prev(free_by_address_.end());
    if (last->first + last->second == end_) missing -= last->second;
  }
  if (missing > base_ + capacity_ - end_) return false;
  const Address needed_end = end_ + missing;
  if (needed_end > usable_end_) {
    const Address wanted_end = std::min(base_ + rounded_up(needed_end - base_, kGrowth), base_ + capacity_);
    if (::mprotect(memory_at(usable_end_), wanted_end - usable_end_, PROT_READ | PROT_WRITE) != 0) return false;
    ::madvise(memory_at(usable_end_), wanted_end - usable_end_, MADV_HUGEPAGE);  // Refused where there are none.
    usable_end_ = wanted_end;
  }
  add_free(end_, missing);
  end_ = needed_end;
  return true;
}

void Arena::give_back(Address begin, std::size_t bytes) const {
  const Address first = rounded_up(begin, page_bytes()), last = (begin + bytes) / page_bytes() * page_bytes();
  if (first < last) ::madvise(memory_at(first), last - first, MADV_DONTNEED);  // Advice: locked pages simply stay.
}

}  // namespace headrace
