#include "data/loader/detail/consumer.h"

#include <algorithm>

namespace headrace::detail {

void Consumer::begin(std::int64_t epoch, const Place& at, std::int64_t first,
                     std::shared_ptr<std::atomic<std::int64_t>> left) noexcept {
  left_ = std::move(left);
  start_.reset();
  next_epoch_ = epoch + 1;
  at_ = at;
  next_batch_ = first;
  went_on_ns_.reset();
}

void Consumer::end() noexcept {
  left_->store(0);
  left_ = nullptr;
}

std::promise<std::optional<Batch>> Consumer::take_request() noexcept {
  std::promise<std::optional<Batch>> promise = std::move(*request_);
  request_.reset();
  return promise;
}

Consumer::Turn Consumer::go_on(std::int64_t asked_ns, std::int64_t now_ns) noexcept {
  const std::int64_t blocked = blocked_ns_->load();
  const std::int64_t waited_ns = blocked - std::exchange(blocked_seen_ns_, blocked);
  Turn turn{.asked_ns = asked_ns, .busy_ns = 0};
  if (went_on_ns_) {
    turn.asked_ns = std::max(asked_ns - waited_ns, *went_on_ns_);
    turn.busy_ns = turn.asked_ns - *went_on_ns_;
  }
  went_on_ns_ = now_ns;
  return turn;
}

}  // namespace headrace::detail
