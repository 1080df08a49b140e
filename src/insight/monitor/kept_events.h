// The newest events of a run, numbered, so that each reader goes on where it stopped.
#pragma once

#include <headrace/monitor_event.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

namespace headrace {

// For one thread at a time. Numbers count from 0 and are never used again.
class KeptEvents {
 public:
  static constexpr std::size_t kMax = 1000;

  void add(MonitorEvent event) {
    events_.push_back(std::move(event));
    if (events_.size() <= kMax) return;
    events_.pop_front();
    ++begin_;
  }
  std::int64_t begin() const { return begin_; }                      // The number of the oldest that is kept,
  std::int64_t end() const { return begin_ + std::ssize(events_); }  // and of the next one that comes.
  std::vector<MonitorEvent> from(std::int64_t number) const {
    return {events_.begin() + std::clamp<std::int64_t>(number - begin_, 0, std::ssize(events_)), events_.end()};
  }

 private:
  std::deque<MonitorEvent> events_;
  std::int64_t begin_ = 0;
};

}  // namespace headrace
