#include "data/loader/detail/batch_window.h"

#include <algorithm>
#include <utility>

namespace headrace::detail {

void BatchWindow::begin(std::unique_ptr<Pass> pass, std::int64_t first, std::int64_t end) noexcept {
  pass_ = std::move(pass);
  is_open_ = pass_ != nullptr && pass_->batch_sampler.is_open();
  end_ = end;
  next_ = first;
  samples_ = zeroed_ = 0;
}

void BatchWindow::end(SlotPool& slots) noexcept {
  for (auto& slot : batches_) slots.put_back(std::move(slot));
  batches_.clear();
  pass_.reset();
  failure_ = nullptr;
  ended_after_.reset();
  lacks_block_ = false;
}

Place BatchWindow::place_after(std::int64_t batch) const noexcept {
  if (is_open_ ? is_over() : batch + 1 == end_) return {pass_->epoch + 1, 0};
  const GivenEpoch* const given = pass_->order.given();
  return {pass_->epoch, pass_->batch_sampler.position_after(batch), given != nullptr ? given->hash() : 0};
}

bool BatchWindow::open(SlotPool& slots) noexcept {
  lacks_block_ = false;
  try {
    auto slot = slots.take(pass_->epoch, next_, pass_->batch_sampler.slice(next_).size);
    lacks_block_ = slot == nullptr;
    if (lacks_block_) return false;
    batches_.push_back(std::move(slot));
    ++next_;
    return true;
  } catch (...) {
    note_failure(std::current_exception(), next_ * batch_size_);
    return false;
  }
}

Claim BatchWindow::claim(std::int64_t depth, std::int64_t workers) noexcept {
  Batch::Slot& slot = *batches_.back();
  // Two chunks a worker lie in a full window, so that few samples still occupy all.
  const std::int64_t fair = depth * batch_size_ / (2 * std::max<std::int64_t>(workers, 1));
  const std::int64_t count = std::min(std::clamp<std::int64_t>(fair, 1, chunk_max_), slot.size - slot.claimed);
  const Claim mine{&slot, slot.claimed, count};
  slot.claimed += count;
  ++working_;
  return mine;
}

void BatchWindow::finish(const Claim& claim, const ChunkReport& report) noexcept {
  --working_;
  claim.slot->finished += report.samples;
  samples_ += report.samples;
  zeroed_ += report.zeroed;
}

void BatchWindow::bring_forward(const Batch::Slot& whole) noexcept {
  const auto is_it = [&whole](const auto& slot) { return slot.get() == &whole; };
  const auto place = std::find_if(batches_.begin(), batches_.end(), is_it);
  const auto to = std::find_if(batches_.begin(), place, [](const auto& slot) { return slot->finished != slot->size; });
  std::rotate(to, place, place + 1);
}

void BatchWindow::note_end(std::int64_t samples) noexcept {
  const BatchSampler& batch_sampler = pass_->batch_sampler;
  const std::int64_t place = batch_sampler.first_batch() * batch_size_ + samples - batch_sampler.begin();
  if (place >= pass_->stop_at.load(std::memory_order_relaxed)) return;
  failure_ = nullptr;
  ended_after_ = samples;
  pass_->stop_at.store(place, std::memory_order_relaxed);
}

Claim BatchWindow::settle_end(SlotPool& slots) noexcept {
  BatchSampler& batch_sampler = pass_->batch_sampler;
  batch_sampler.end_at(*ended_after_);
  ended_after_.reset();
  pass_->stop_at.store(Pass::kNever, std::memory_order_relaxed);
  end_ = next_ = batch_sampler.end_batch();
  for (auto& slot : batches_) {
    if (slot->index >= end_) slots.put_back(std::move(slot));
  }
  std::erase(batches_, nullptr);
  if (batches_.empty()) return {};
  Batch::Slot& last = *batches_.back();  // Whole ones lie before it.
  const BatchSampler::Slice slice = batch_sampler.slice(last.index);
  if (slice.counted == last.size) return {};
  if (slice.size == last.size) {
    last.claimed = slice.counted;
    return {};
  }
  last.size = last.claimed = slice.size;
  last.finished = 0;
  samples_ -= slice.size;
  ++working_;
  return {&last, 0, slice.size};
}

void BatchWindow::note_failure(std::exception_ptr failure, std::int64_t position) noexcept {
  if (position >= pass_->stop_at.load(std::memory_order_relaxed)) return;
  failure_ = std::move(failure);
  ended_after_.reset();
  pass_->stop_at.store(position, std::memory_order_relaxed);
}

void BatchWindow::give_up(std::exception_ptr failure) noexcept {
  if (failure != nullptr) failure_ = std::move(failure);
  ended_after_.reset();
  pass_->stop_at.store(0, std::memory_order_relaxed);
}

std::int64_t BatchWindow::whole_batches() const noexcept {
  return std::count_if(batches_.begin(), batches_.end(), [](const auto& slot) { return slot->finished == slot->size; });
}

std::unique_ptr<Batch::Slot> BatchWindow::take_front() noexcept {
  std::unique_ptr<Batch::Slot> slot = std::move(batches_.front());
  batches_.erase(batches_.begin());
  return slot;
}

}  // namespace headrace::detail
