#include "insight/tune/update_cycle.h"

#include <algorithm>
#include <tuple>

namespace headrace {
namespace {

constexpr std::size_t kSteps = 12;      // Looked at before an order is believed; looked at again after each so many.
constexpr std::size_t kStepsMax = 600;  // An order that is not found by then is none.
// An optimizer that made none of the last so many needs no place in the order.
constexpr std::size_t kStepsLate = 240;

using Steps = std::span<const std::size_t>;

Steps last_of(Steps steps, std::size_t count) {
  return steps.last(std::min(count, steps.size()));
}

bool repeats(Steps steps, std::size_t length) {
  return std::equal(steps.begin() + static_cast<std::ptrdiff_t>(length), steps.end(), steps.begin());
}

}  // namespace

UpdateCycle::UpdateCycle(std::size_t optimizers) {
  if (optimizers == 1) order_.push_back(0);
}

bool UpdateCycle::ends_with(std::size_t optimizer) const noexcept {
  const auto place = place_of(optimizer);
  return place && *place + 1 == order_.size();
}

std::int64_t UpdateCycle::step(std::size_t optimizer, std::int64_t batches) {
  const auto place = place_of(optimizer);
  if (!place) return learn(optimizer, batches);
  next_ = (*place + 1) % order_.size();
  return next_ == 0 ? 1 : 0;
}

std::optional<std::size_t> UpdateCycle::place_of(std::size_t optimizer) const noexcept {
  for (std::size_t ahead = 0; ahead < order_.size(); ++ahead) {
    const std::size_t place = (next_ + ahead) % order_.size();
    if (order_[place] == optimizer) return place;
  }
  return std::nullopt;
}

std::int64_t UpdateCycle::learn(std::size_t optimizer, std::int64_t batches) {
  order_.clear();
  if (!problem_.empty()) return 0;
  steps_.push_back(optimizer);
  takes_batch_.push_back(batches > batches_);
  batches_ = batches;
  if (steps_.size() % kSteps != 0) return 0;
  const auto length = shortest();
  if (!length) {
    if (steps_.size() >= kStepsMax) problem_ = "the optimizers step in no order that repeats";
    return 0;
  }
  const std::int64_t ended = begin(*length);
  steps_.clear();
  takes_batch_.clear();
  saw_first_ = false;
  return ended;
}

// Length of the shortest order that was repeated of late and holds every optimizer that stepped of late.
std::optional<std::size_t> UpdateCycle::shortest() const {
  const Steps late = last_of(steps_, kStepsLate);
  for (std::size_t length = 1; length <= steps_.size() / 2; ++length) {
    const Steps last = last_of(steps_, std::max(kSteps, 2 * length));
    const auto is_in_last = [&](std::size_t one) { return std::find(last.begin(), last.end(), one) != last.end(); };
    if (repeats(last, length) && std::all_of(late.begin(), late.end(), is_in_last)) return length;
  }
  return std::nullopt;
}

// Takes the last `length` steps as the order. Returns how many iterations they have ended so far.
std::int64_t UpdateCycle::begin(std::size_t length) {
  const std::size_t count = steps_.size();
  const Steps last = last_of(steps_, length);
  const bool is_regular = saw_first_ && repeats(steps_, length);
  // Of the place of an iteration's last step: the larger, the likelier.
  const auto likelihood = [&](std::size_t end) {
    const bool begins_with_batch = takes_batch_[count - length + (end + 1) % length] != 0;
    const bool from_first_step = is_regular && (count + end + 1) % length == 0;
    return std::tuple(begins_with_batch, from_first_step, -std::count(last.begin(), last.end(), last[end]));
  };
  std::size_t end = 0;
  for (std::size_t other = 1; other < length; ++other) {
    if (likelihood(other) > likelihood(end)) end = other;
  }
  order_.assign(last.begin(), last.end());
  std::rotate(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(end + 1), order_.end());
  next_ = length - 1 - end;
  return static_cast<std::int64_t>((count - length + end) / length + 1);
}

}  // namespace headrace
