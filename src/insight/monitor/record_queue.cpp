#include "insight/monitor/record_queue.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

RecordQueue::RecordQueue(std::int64_t size)
    : slots_(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(size, 2)))) {
  HEADRACE_CHECK(size > 0, "a queue of {} records", size);
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
}

bool RecordQueue::try_push(MonitorRecord&& record) noexcept {
  const std::uint64_t mask = slots_.size() - 1;
  std::uint64_t at = pushed_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[at & mask];
    const std::uint64_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn == at) {
      if (!pushed_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
      slot.record = std::move(record);
      slot.turn.store(at + 1, std::memory_order_release);
      return true;
    }
    if (turn < at) return false;  // The consumer has not been here since the last round.
    at = pushed_.load(std::memory_order_relaxed);
  }
}

bool RecordQueue::try_pop(MonitorRecord& record) noexcept {
  Slot& slot = slots_[popped_ & (slots_.size() - 1)];
  if (slot.turn.load(std::memory_order_acquire) != popped_ + 1) return false;
  record = std::move(slot.record);
  slot.turn.store(popped_ + slots_.size(), std::memory_order_release);
  ++popped_;
  return true;
}

}  // namespace headrace
