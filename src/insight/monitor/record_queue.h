// A bounded queue of records from any threads to one, in which nobody waits.
#pragma once

#include <headrace/monitor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace headrace {

// Each slot carries the number of the turn that may use it next, so that a push takes one compare-and-swap and no lock
// (D. Vyukov, Bounded MPMC queue; here with one consumer). Memory is taken when it is made.
class RecordQueue {
 public:
  // `size`: above 0, rounded up to a power of two, at least 2.
  explicit RecordQueue(std::int64_t size);

  // Any thread. false: it is full, and `record` is as it was.
  bool try_push(MonitorRecord&& record) noexcept;
  // One thread. false: it is empty, or the next record is still being written.
  bool try_pop(MonitorRecord& record) noexcept;
  std::int64_t size() const noexcept { return std::ssize(slots_); }
  // How many were taken since it was made, those of pushes under way too: what was pushed before the call is counted.
  std::int64_t pushed() const noexcept { return static_cast<std::int64_t>(pushed_.load(std::memory_order_relaxed)); }

 private:
  struct Slot {
    std::atomic<std::uint64_t> turn;
    MonitorRecord record;
  };
  std::vector<Slot> slots_;
  alignas(64) std::atomic<std::uint64_t> pushed_{0};
  alignas(64) std::uint64_t popped_ = 0;  // The consumer's.
};

}  // namespace headrace
