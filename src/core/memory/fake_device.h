// For tests: a device that copies from page-locked memory when it is told to, in the order in which it was asked.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "core/memory/page_lock.h"

namespace headrace {

// Pools that allocate while it lives lock their blocks for it. One at a time. Thread-safe.
class FakeDevice {
 public:
  FakeDevice() {
    current = this;
    install_page_lock({lock, unlock, mark, has_passed, wait});
  }
  ~FakeDevice() {
    install_page_lock({});
    current = nullptr;
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // Queues a copy of these bytes, as they are when it is made.
  void queue(std::span<const std::byte> from) {
    const std::lock_guard guard(mutex_);
    queued_.push_back(from);
  }
  // Makes the next copies; fewer where fewer are queued.
  void make(std::size_t count) {
    const std::lock_guard guard(mutex_);
    make_up_to(copies_.size() + count);
  }
  void make_all() { make(pending()); }

  // What a mark says from now on: that a graph is captured, or that all is read.
  void set_capturing(bool is_capturing) {
    const std::lock_guard guard(mutex_);
    is_capturing_ = is_capturing;
  }
  void set_done(bool is_done) {
    const std::lock_guard guard(mutex_);
    is_done_ = is_done;
  }

  std::vector<std::vector<std::byte>> copies() const {
    const std::lock_guard guard(mutex_);
    return copies_;
  }
  std::size_t pending() const {
    const std::lock_guard guard(mutex_);
    return queued_.size() - copies_.size();
  }
  std::size_t locked() const {
    const std::lock_guard guard(mutex_);
    return locked_.size();
  }
  std::int64_t marks() const {
    const std::lock_guard guard(mutex_);
    return marks_;
  }
  std::int64_t waits() const {
    const std::lock_guard guard(mutex_);
    return waits_;
  }

 private:
  // The mutex is held.
  void make_up_to(std::size_t count) {
    while (copies_.size() < count && copies_.size() < queued_.size()) {
      const std::span<const std::byte> from = queued_[copies_.size()];
      copies_.emplace_back(from.begin(), from.end());
    }
  }

  static bool lock(void* memory, std::size_t) {
    const std::lock_guard guard(current->mutex_);
    return current->locked_.insert(memory).second;
  }
  static void unlock(void* memory) {
    const std::lock_guard guard(current->mutex_);
    EXPECT_EQ(current->locked_.erase(memory), 1U) << "unlocked what is not locked";
    const auto begin = static_cast<const std::byte*>(memory);
    for (std::size_t i = current->copies_.size(); i < current->queued_.size(); ++i) {
      EXPECT_NE(current->queued_[i].data(), begin) << "unlocked before copy " << i;
    }
  }
  static PageMark mark() {
    const std::lock_guard guard(current->mutex_);
    ++current->marks_;
    if (current->is_done_) return {};
    if (current->is_capturing_) return {PageMark::Reads::unknown, nullptr};
    return {PageMark::Reads::queued, reinterpret_cast<void*>(current->queued_.size())};
  }
  static bool has_passed(void* end) {
    const std::lock_guard guard(current->mutex_);
    return current->copies_.size() >= reinterpret_cast<std::size_t>(end);
  }
  // The device gets there by itself.
  static void wait(void* end) {
    const std::lock_guard guard(current->mutex_);
    ++current->waits_;
    current->make_up_to(reinterpret_cast<std::size_t>(end));
  }

  static inline FakeDevice* current = nullptr;  // What is called has no state of its own.
  mutable std::mutex mutex_;                    // Guards everything below.
  std::vector<std::span<const std::byte>> queued_;
  std::vector<std::vector<std::byte>> copies_;  // Of the first of them.
  std::set<void*> locked_;
  std::int64_t marks_ = 0, waits_ = 0;
  bool is_capturing_ = false, is_done_ = false;
};

}  // namespace headrace
