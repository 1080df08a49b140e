// Where one update of a user's loop ends and the next begins, and which updates may be compared by their times: told
// event by event by hooks on the loop's objects.
//
// One thread at a time. Nothing is allocated, but for the sentence of a unit that does not count.
#pragma once

#include <headrace/live_loop.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "insight/tune/epoch_counts.h"
#include "insight/tune/update_cycle.h"
#include "insight/tune/update_kind.h"

namespace headrace {

class LoopUnits {
 public:
  // What the end of a step led to.
  enum class End {
    nothing,  // No unit has ended.
    first,    // The first update: what begins is the first unit.
    unit,     // unit() tells of it.
  };

  // Optimizers are numbers below `optimizers`. `updates`: that the loop has made before, at least 0.
  LoopUnits(std::size_t optimizers, std::shared_ptr<EpochCounts> epochs, std::int64_t updates = 0);

  // Events. What happens while is_telling() is nothing of the loop's, and no event.
  void see_call(bool has_gradients, bool trains, double numbers) noexcept;
  void see_checkpoint() noexcept;
  // An optimizer's step begins. Whether the gradients of an update are complete with it that nobody was asked about.
  bool begin_step(std::size_t optimizer, LoopThread here);
  void note_asked() noexcept { has_asked_ = true; }
  End end_step(std::size_t optimizer, LoopThread here, double now_s);
  bool is_own(LoopThread here) const noexcept { return thread_ == here; }
  void leave_out(std::string why) { left_out_ = std::move(why); }  // The unit at hand does not count.
  // The units end here; a step that has begun is forgotten, too.
  void interrupt() noexcept;

  void set_telling(bool telling) noexcept { is_telling_ = telling; }
  bool is_telling() const noexcept { return is_telling_; }

  const LiveUnit& unit() const noexcept { return unit_; }
  std::int64_t updates() const noexcept { return updates_; }
  std::optional<LoopThread> thread() const noexcept { return thread_; }  // Of the first step; nullopt: none was seen.
  bool was_called() const noexcept { return was_called_; }               // A model or a part of it.
  std::optional<std::int64_t> micro_batches() const noexcept;            // In an update, usually.
  std::optional<std::int64_t> updates_an_epoch() const noexcept { return updates_an_epoch_; }  // As the last had them.
  std::string problem() const;  // Why nothing can be measured; empty: nothing stands against it so far.
  EpochCounts& epochs() noexcept { return *epochs_; }

 private:
  // Since the last update.
  struct Seen {
    std::int64_t steps = 0, calls = 0, evaluations = 0, checkpoints = 0, failures = 0;
    double numbers = 0;  // In the inputs of calls with gradients.
    bool has_called_in_step = false;
  };
  void note_epoch(std::int64_t updates) noexcept;

  std::shared_ptr<EpochCounts> epochs_;
  UpdateCycle cycle_;
  UsualKind usual_;
  Seen seen_;
  bool is_stepping_ = false, has_asked_ = false, is_telling_ = false, was_called_ = false;
  bool steps_in_two_threads_ = false;
  std::string left_out_;
  std::optional<LoopThread> thread_;
  std::optional<double> since_s_;  // End of the update before.
  std::int64_t updates_, updates_before_epoch_;
  std::optional<std::int64_t> updates_an_epoch_;
  LiveUnit unit_;
};

}  // namespace headrace
