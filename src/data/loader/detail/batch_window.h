// The batches of a pass that are opened and not delivered, which chunk comes next, and the first failure in the order
// of the data. The loader's `mutex` is held.
#pragma once

#include <headrace/batch.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "data/loader/detail/chunk.h"
#include "data/loader/detail/pass.h"
#include "data/loader/detail/place.h"
#include "data/loader/detail/slot.h"

namespace headrace::detail {

// Samples [first, first + count) of a slot, taken by one worker.
struct Claim {
  Batch::Slot* slot = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Workers claim chunks of the newest batch and open the next when it is used up; positions are therefore claimed in
// order, so that after a failure everything before it is already in somebody's hands, and the first failure in the
// order of the data is found whatever the thread count. So is the end of data whose size is not known: behind it
// nothing is claimed any more, and when all before it is made the last batch gets its size. Such a pass is over when
// the consumer has asked once more: whether there is another batch is not known before, and what a consumer is told
// must not depend on how far the workers were.
class BatchWindow {
 public:
  BatchWindow(std::int64_t batch_size, std::int64_t depth, std::int64_t chunk_max = kChunkMax)
      : batch_size_(batch_size), chunk_max_(chunk_max), depth_(depth) {
    reserve(depth);
  }

  // ---- The pass ----
  // Batches `first` to `end` - 1. Null: there are none.
  void begin(std::unique_ptr<Pass> pass, std::int64_t first, std::int64_t end) noexcept;
  // Nobody works. What is not delivered goes home.
  void end(SlotPool& slots) noexcept;
  bool has_pass() const noexcept { return pass_ != nullptr; }
  const Pass& pass() const noexcept { return *pass_; }
  std::int64_t end_batch() const noexcept { return end_; }  // Of the last pass that began; 0: none did.
  // Where the batch after `batch`, which is one of the pass, stands; of an open pass behind its end that is the next
  // epoch once it is_over().
  Place place_after(std::int64_t batch) const noexcept;

  // ---- Chunks ----
  // Batches that workers prepare ahead; a consumer that loads by itself one.
  std::int64_t depth() const noexcept { return depth_; }
  void set_depth(std::int64_t batches) noexcept { depth_ = batches; }
  // So that no worker allocates where so many batches are opened.
  void reserve(std::int64_t batches) { batches_.reserve(static_cast<std::size_t>(batches)); }
  // Whether there is a chunk to claim where `depth` batches may be open.
  bool can_claim(std::int64_t depth) const noexcept {
    if (pass_ == nullptr || is_stopping()) return false;
    return has_unclaimed() || (std::ssize(batches_) < depth && next_ < end_);
  }
  bool has_unclaimed() const noexcept { return !batches_.empty() && batches_.back()->claimed < batches_.back()->size; }
  // Batches of a sound pass that wait for room.
  bool has_unopened() const noexcept { return pass_ != nullptr && !is_stopping() && next_ < end_; }
  // The next batch. False: there is no memory for it, which is noted as the failure of its first position, or none yet:
  // lacks_block().
  bool open(SlotPool& slots) noexcept;
  // There would be a chunk to claim, but devices still read all blocks, as the last open() found: to be tried again.
  bool lacks_block(std::int64_t depth) const noexcept { return lacks_block_ && can_claim(depth); }
  // The next chunk in the order of the data, which is there, as one of `workers` takes it.
  Claim claim(std::int64_t depth, std::int64_t workers) noexcept;
  void finish(const Claim& claim, const ChunkReport& report) noexcept;
  std::int64_t working() const noexcept { return working_; }  // Chunks claimed and not finished.
  // A whole batch, before those that are not. The newest of these stays at the back, where chunks are claimed.
  void bring_forward(const Batch::Slot& whole) noexcept;

  // ---- The end of a pass that is open ----
  // The epoch has so many samples, the pass's first or more. As a failure there, but that the pass ends well.
  void note_end(std::int64_t samples) noexcept;
  // All samples before the end are made, and what the pass ends with is not settled yet.
  bool is_at_end() const noexcept { return ended_after_.has_value() && working_ == 0; }
  std::int64_t ended_after() const noexcept { return *ended_after_; }
  // Samples of the pass so far.
  std::int64_t made() const noexcept { return samples_; }
  // is_at_end(). Batches behind the end go home. What is left over of the last one is dropped, or it is filled up, by
  // further claims, or has fewer samples and is handed out as a claim once more: to be shrunk and sealed.
  Claim settle_end(SlotPool& slots) noexcept;
  // All batches are taken.
  bool is_over() const noexcept { return is_open_ && pass_ != nullptr && batches_.empty() && next_ == end_; }

  // ---- Failures ----
  // Keeps the first in the order of the data: what comes after it is not wanted any more.
  void note_failure(std::exception_ptr failure, std::int64_t position) noexcept;
  // Samples from some position on are not wanted any more.
  bool is_stopping() const noexcept { return pass_->stop_at.load(std::memory_order_relaxed) != Pass::kNever; }
  // No sample is, for this reason or because the consumer leaves.
  void give_up(std::exception_ptr failure = nullptr) noexcept;
  // At the position where the pass stops.
  const std::exception_ptr& failure() const noexcept { return failure_; }

  // ---- The front ----
  std::int64_t whole_batches() const noexcept;
  bool front_is_ready() const noexcept {
    return !batches_.empty() && batches_.front()->finished == batches_.front()->size && !is_given_up();
  }
  // The front batch is whole, or a failure lies in it that no other can precede, or there is no pass any more.
  bool front_is_decided() const noexcept {
    return pass_ == nullptr || front_is_ready() || (is_stopping() && working_ == 0) || is_over();
  }
  bool front_is_last() const noexcept { return !is_open_ && batches_.size() == 1 && next_ == end_; }
  // Known once the last batch is whole. A pass that begins late may end in a few corrupt samples.
  bool no_sample_is_sound() const noexcept { return pass_->batch_sampler.begin() == 0 && zeroed_ == samples_; }
  std::int64_t zeroed() const noexcept { return zeroed_; }  // Samples of the pass so far that only hold a place.
  std::unique_ptr<Batch::Slot> take_front() noexcept;

 private:
  bool is_given_up() const noexcept { return pass_->stop_at.load(std::memory_order_relaxed) == 0; }

  const std::int64_t batch_size_, chunk_max_;
  std::int64_t depth_;
  std::unique_ptr<Pass> pass_;  // Of the running epoch, if any.
  bool is_open_ = false;        // It began without a known end.
  std::int64_t end_ = 0;        // One more than its last batch; stays when it ends.
  std::int64_t next_ = 0;       // The batch that will be opened next.
  std::vector<std::unique_ptr<Batch::Slot>> batches_;
  bool lacks_block_ = false;
  std::int64_t working_ = 0;
  std::int64_t samples_ = 0;    // Of the pass so far,
  std::int64_t zeroed_ = 0;     // and of them those that only hold a place.
  std::exception_ptr failure_;  // At pass_->stop_at.
  std::optional<std::int64_t>
      ended_after_;  // Samples of the epoch, of which the first that is not there is at stop_at.
};

}  // namespace headrace::detail
