#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "core/trace/detail/ring.h"

namespace headrace::detail {

std::unique_ptr<ThreadRing> ThreadRing::make(std::uint64_t slots) noexcept {
  // Fresh pages, mapped as events reach them: a thread with ten events costs one page.
  void* memory = ::mmap(nullptr, slots * sizeof(RawEvent), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* ring = new (std::nothrow) ThreadRing(static_cast<RawEvent*>(memory), slots);
  if (ring == nullptr) ::munmap(memory, slots * sizeof(RawEvent));
  return std::unique_ptr<ThreadRing>(ring);
}

ThreadRing::~ThreadRing() {
  ::munmap(events_, slots() * sizeof(RawEvent));
}

ThreadRing::Copied ThreadRing::copy_since(std::uint64_t wanted, std::vector<RawEvent>& out) const {
  // The owner may be writing the event with number head_, in the slot of the event that is slots() older.
  const auto oldest_intact = [this](std::uint64_t head) { return head < slots() ? 0 : head + 1 - slots(); };
  const std::uint64_t end = head_.load(std::memory_order_acquire);
  const std::uint64_t first = std::max(wanted, oldest_intact(end));
  const std::size_t copied_from = out.size();
  out.reserve(out.size() + (end - first));
  for (std::uint64_t index = first; index < end; ++index) {
    RawEvent& slot = events_[index & mask_];
    out.push_back({std::atomic_ref(slot.name).load(std::memory_order_acquire),
                   std::atomic_ref(slot.begin).load(std::memory_order_acquire),
                   std::atomic_ref(slot.end).load(std::memory_order_acquire),
                   std::atomic_ref(slot.value).load(std::memory_order_acquire)});
  }
  // What the owner may have overwritten meanwhile is torn: it counts as dropped.
  const std::uint64_t intact = std::min(std::max(first, oldest_intact(head_.load(std::memory_order_acquire))), end);
  const auto torn_begin = out.begin() + static_cast<std::ptrdiff_t>(copied_from);
  out.erase(torn_begin, torn_begin + static_cast<std::ptrdiff_t>(intact - first));
  return {intact, end};
}

std::int64_t ThreadRing::drain(std::vector<RawEvent>& out) {
  const Copied copied = copy_since(drained_, out);
  const auto dropped = static_cast<std::int64_t>(copied.intact - drained_);
  drained_ = copied.end;
  return dropped;
}

}  // namespace headrace::detail
