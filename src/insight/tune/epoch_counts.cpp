#include "insight/tune/epoch_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

constexpr std::int64_t kUpdatesForTurns = 48;  // Looked at together to find loaders that take turns.

}  // namespace

void EpochCounts::note_begin(LoopThread here, double wait_s) noexcept {
  ++begun_;
  if (!is_own(here)) return;
  ++update_.begun;
  update_.wait_s += wait_s;
}

void EpochCounts::note_batch(LoopThread here, double wait_s) noexcept {
  ++batches_;
  if (!is_own(here)) return;
  serves_loop_ = true;
  ++own_batches_;
  ++update_.batches;
  update_.wait_s += wait_s;
}

void EpochCounts::note_end(LoopThread here, double wait_s, std::int64_t batches) noexcept {
  ++ended_;
  length_ = batches;
  if (!is_own(here)) return;
  ++update_.ended;
  update_.wait_s += wait_s;
}

void EpochCounts::note_failure(LoopThread here) noexcept {
  if (is_own(here)) ++update_.failed;
}

EpochCounts::Update EpochCounts::take() {
  const Update taken = std::exchange(update_, Update{});
  if (is_watched_) look_for_turns(taken.batches > 0);
  return taken;
}

void EpochCounts::look_for_turns(bool has_batch) {
  ++updates_;
  with_batch_ += has_batch ? 1 : 0;
  changes_ += has_batch != had_batch_ ? 1 : 0;
  had_batch_ = has_batch;
  if (updates_ < kUpdatesForTurns) return;
  const std::int64_t without = updates_ - with_batch_;
  const bool share_work = std::min(with_batch_, without) * 5 >= updates_ * 2, take_turns = changes_ * 3 >= updates_;
  if (share_work && take_turns) {
    problem_ = fmt::format(
        "two loaders take turns, or a batch serves several updates: {} of {} updates took no batch from the loader "
        "that "
        "was given",
        without, updates_);
  }
  updates_ = with_batch_ = changes_ = 0;
}

}  // namespace headrace
