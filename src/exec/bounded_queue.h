// A bounded first-in first-out queue with a name, whose waits are spans of the trace.
#pragma once

#include <headrace/trace.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace headrace {

// Thread-safe. `wait_push` and `wait_pop` name the waits in the trace: a full queue blocks push, an empty one pop.
template <class T>
class BoundedQueue {
 public:
  BoundedQueue(std::size_t capacity, const SpanName& wait_push, const SpanName& wait_pop)
      : capacity_(capacity), wait_push_(wait_push), wait_pop_(wait_pop) {}

  // Blocks while full. False: the queue was closed and `value` was not taken.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    if (items_.size() >= capacity_ && !closed_) {
      Span span{wait_push_};
      not_full_.wait(lock, [this] { return items_.size() < capacity_ || closed_; });
    }
    if (closed_) return false;
    items_.push_back(std::move(value));
    lock.unlock();
    not_empty_.notify_one();
    return true;
  }
  bool try_push(T& value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.notify_one();
    return true;
  }
  // Blocks while empty. nullopt: closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    if (items_.empty() && !closed_) {
      Span span{wait_pop_};
      not_empty_.wait(lock, [this] { return !items_.empty() || closed_; });
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> value{std::move(items_.front())};
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return value;
  }
  // Wakes every waiter. What is inside can still be popped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  const SpanName& wait_push_;
  const SpanName& wait_pop_;
  mutable std::mutex mutex_;  // Guards items_ and closed_.
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace headrace
