// Who asks a Loader for batches: where it stands in the order of all epochs, what it has asked for, and how long it
// worked and waited. The loader's `mutex` is held.
#pragma once

#include <headrace/batch.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "data/loader/detail/place.h"

namespace headrace::detail {

// One batch held by the consumer while it asks for the next one, and that next one.
inline constexpr std::int64_t kConsumerBatches = 2;

class Consumer {
 public:
  // ---- Where it stands ----
  // Before the batch that it asks for next, or where somebody said that it starts.
  Place place() const noexcept { return start_.value_or(at_); }
  bool has_start() const noexcept { return start_.has_value(); }
  // At the start, if somebody said one, else behind the epoch that it began last.
  Place next_epoch() const noexcept { return start_.value_or(Place{next_epoch_, 0}); }
  void start_at(const Place& place) noexcept { start_ = place; }
  // Begins `epoch` with batch `first`, at `at`. `left`: batches still to be delivered; null: there are none.
  void begin(std::int64_t epoch, const Place& at, std::int64_t first,
             std::shared_ptr<std::atomic<std::int64_t>> left) noexcept;
  std::int64_t next_batch() const noexcept { return next_batch_; }
  // It has asked for the next batch, behind which `after` lies.
  void step(const Place& after) noexcept {
    at_ = after;
    ++next_batch_;
  }
  void count_delivery() noexcept { left_->fetch_sub(1); }
  void end() noexcept;

  // ---- What it has asked for without waiting ----
  bool has_request() const noexcept { return request_.has_value(); }
  std::int64_t requested_ns() const noexcept { return requested_ns_; }
  void request(std::promise<std::optional<Batch>> promise, std::int64_t now_ns) noexcept {
    request_ = std::move(promise);
    requested_ns_ = now_ns;
  }
  // Which is there.
  std::promise<std::optional<Batch>> take_request() noexcept;

  // ---- Its times ----
  struct Turn {
    std::int64_t asked_ns;  // As if it had been blocked in asking alone.
    std::int64_t busy_ns;   // Its own, since it went on the time before; 0 for the first in an epoch.
  };
  // It asked at `asked_ns` and goes on at `now_ns`, with a batch or without. For how long it was blocked since the last
  // time in what it had asked for counts as if it had asked so much sooner.
  Turn go_on(std::int64_t asked_ns, std::int64_t now_ns) noexcept;
  // In its futures, which count there; needs no lock.
  const std::shared_ptr<std::atomic<std::int64_t>>& blocked_ns() const noexcept { return blocked_ns_; }

 private:
  Place at_;                                         // Where next_batch_ stands.
  std::optional<Place> start_;                       // Where next_epoch() begins, when somebody said so.
  std::int64_t next_epoch_ = 0;                      // The epoch that begins otherwise.
  std::int64_t next_batch_ = 0;                      // That it asks for next.
  std::shared_ptr<std::atomic<std::int64_t>> left_;  // Of the running epoch; see Epoch::Impl.
  std::optional<std::promise<std::optional<Batch>>> request_;
  std::int64_t requested_ns_ = 0;
  std::optional<std::int64_t> went_on_ns_;  // In the running epoch.
  // Owners: the loader, and its futures.
  const std::shared_ptr<std::atomic<std::int64_t>> blocked_ns_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::int64_t blocked_seen_ns_ = 0;  // Of these, what go_on() has seen.
};

}  // namespace headrace::detail
