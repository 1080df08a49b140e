#include "insight/tune/loop_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

constexpr std::int64_t kEpochsWithoutUpdate = 3;  // That many, and the loop is none that updates.

}  // namespace

LoopUnits::LoopUnits(std::size_t optimizers, std::shared_ptr<EpochCounts> epochs, std::int64_t updates)
    : epochs_(std::move(epochs)), cycle_(optimizers), updates_(updates), updates_before_epoch_(updates) {}

void LoopUnits::see_call(bool has_gradients, bool trains, double numbers) noexcept {
  was_called_ = true;
  if (is_telling_) return;
  if (has_gradients) seen_.numbers += numbers;
  if (!has_gradients || !trains) {
    ++seen_.evaluations;
  } else if (is_stepping_) {
    seen_.has_called_in_step = true;
  } else {
    ++seen_.calls;
  }
}

void LoopUnits::see_checkpoint() noexcept {
  if (!is_telling_) ++seen_.checkpoints;
}

bool LoopUnits::begin_step(std::size_t optimizer, LoopThread here) {
  if (is_telling_) return false;
  if (!thread_) {
    thread_ = here;
    epochs_->set_thread(here);
  }
  if (*thread_ != here) {
    steps_in_two_threads_ = true;
    return false;
  }
  // The step before raised; or this is one of torch's that a step of the user's own calls.
  if (is_stepping_) ++seen_.failures;
  is_stepping_ = true;
  return !has_asked_ && cycle_.ends_with(optimizer);
}

LoopUnits::End LoopUnits::end_step(std::size_t optimizer, LoopThread here, double now_s) {
  if (is_telling_ || !is_stepping_ || !is_own(here)) return End::nothing;
  is_stepping_ = false;
  ++seen_.steps;
  const std::int64_t ended = cycle_.step(optimizer, epochs_->own_batches());
  updates_ += ended;
  if (!cycle_.has_ended()) return End::nothing;
  const EpochCounts::Update taken = epochs_->take();
  if (taken.begun > 0) note_epoch(updates_ - ended);
  const Seen seen = std::exchange(seen_, Seen{});
  has_asked_ = false;
  const std::int64_t calls = seen.calls + (seen.has_called_in_step ? 1 : 0);
  const UpdateKind kind{taken.begun,
                        taken.ended,
                        seen.evaluations,
                        seen.checkpoints,
                        seen.failures + taken.failed,
                        taken.batches > 0 ? taken.batches : calls,
                        seen.steps};
  const std::optional<double> since_s = std::exchange(since_s_, now_s);
  if (!since_s) return End::first;
  std::string why_not = problem(), unlike = usual_.unlike(kind), left_out = std::exchange(left_out_, {});
  if (why_not.empty()) why_not = unlike.empty() ? std::move(left_out) : std::move(unlike);
  const bool countable = why_not.empty();
  unit_ = {updates_,     now_s - *since_s, seen.numbers > 0 ? seen.numbers : 1,
           taken.wait_s, countable,        std::move(why_not)};
  return End::unit;
}

void LoopUnits::interrupt() noexcept {
  is_stepping_ = false;
  since_s_.reset();
}

// An epoch has begun after so many updates. One without updates, as for an evaluation, is none of the training's.
void LoopUnits::note_epoch(std::int64_t updates) noexcept {
  if (updates <= updates_before_epoch_) return;
  updates_an_epoch_ = updates - updates_before_epoch_;
  updates_before_epoch_ = updates;
}

std::optional<std::int64_t> LoopUnits::micro_batches() const noexcept {
  if (!usual_.kind()) return std::nullopt;
  return usual_.kind()->micro_batches;
}

std::string LoopUnits::problem() const {
  if (!thread_) {
    const std::int64_t epochs = std::max(epochs_->ended(), epochs_->begun() - 1);
    return epochs >= kEpochsWithoutUpdate ? fmt::format("no update in {} epochs", kEpochsWithoutUpdate) : std::string();
  }
  if (steps_in_two_threads_) return "the optimizer steps in two threads";
  return cycle_.problem().empty() ? epochs_->problem() : cycle_.problem();
}

}  // namespace headrace
