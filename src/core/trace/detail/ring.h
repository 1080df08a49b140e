// The newest events of one thread, written without a lock and read by another thread at any time.
#pragma once

#include <headrace/trace.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace headrace::detail {

struct RawEvent {
  const SpanName* name;
  std::uint64_t begin;  // Ticks.
  std::uint64_t end;
  std::int64_t value;
};

// push() is for the owner alone; drain() and discard() for one reader at a time; copy() for any, beside these.
// restart() is for the owner, with no reader beside it.
class ThreadRing {
 public:
  // Null when the system gives no memory: recording must not throw. `slots` is a power of two.
  static std::unique_ptr<ThreadRing> make(std::uint64_t slots) noexcept;
  ~ThreadRing();
  ThreadRing(const ThreadRing&) = delete;
  ThreadRing& operator=(const ThreadRing&) = delete;

  void push(const SpanName& name, std::uint64_t begin, std::uint64_t end, std::int64_t value) noexcept {
    const std::uint64_t index = head_.load(std::memory_order_relaxed);
    RawEvent& slot = events_[index & mask_];
    // Release, which costs nothing on x86: a reader that meets one of these values in a slot it is copying also sees
    // a head_ that tells it the slot was being overwritten.
    std::atomic_ref(slot.name).store(&name, std::memory_order_release);
    std::atomic_ref(slot.begin).store(begin, std::memory_order_release);
    std::atomic_ref(slot.end).store(end, std::memory_order_release);
    std::atomic_ref(slot.value).store(value, std::memory_order_release);
    head_.store(index + 1, std::memory_order_release);
  }

  // Forgets everything and goes on in the first slot: its pages are mapped, and may be in the cache.
  void restart() noexcept {
    drained_ = 0;
    begun_.store(0, std::memory_order_relaxed);
    head_.store(0, std::memory_order_release);
  }

  // Appends the events since the last drain, oldest first; returns how many of those were overwritten before.
  std::int64_t drain(std::vector<RawEvent>& out);
  // Forgets what was pushed so far.
  void discard() {
    drained_ = head_.load(std::memory_order_acquire);
    begun_.store(drained_, std::memory_order_release);
  }
  // As drain(), of the events since the last discard(), of which it forgets none.
  std::int64_t copy(std::vector<RawEvent>& out) const {
    const std::uint64_t first = begun_.load(std::memory_order_acquire);
    return static_cast<std::int64_t>(copy_since(first, out).intact - first);
  }
  std::uint64_t slots() const { return mask_ + 1; }

 private:
  ThreadRing(RawEvent* events, std::uint64_t slots) : events_(events), mask_(slots - 1) {}

  struct Copied {
    std::uint64_t intact;  // Events before this one are lost.
    std::uint64_t end;     // Up to here they were copied.
  };
  // Appends the events from number `first` on that are still whole.
  Copied copy_since(std::uint64_t first, std::vector<RawEvent>& out) const;

  RawEvent* const events_;
  const std::uint64_t mask_;
  std::atomic<std::uint64_t> head_{0};   // Events ever pushed.
  std::uint64_t drained_ = 0;            // Events that a reader has seen or forgotten.
  std::atomic<std::uint64_t> begun_{0};  // Events forgotten by discard().
};

}  // namespace headrace::detail
