// Where one update of a user's loop ends and the next begins, and which updates may be compared by their times: told
// event by event by hooks on the loop's objects.
//
// One thread at a time. An event costs 10 to 50 ns, the end of a unit some 200.
#pragma once

#include <headrace/live_loop.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "insight/tune/update_cycle.h"
#include "insight/tune/update_kind.h"

namespace headrace {

// A thread, as whoever tells the events numbers them.
using LoopThread = std::uint64_t;

// What a loop takes from its loader, and how long it waits for it. A batch that another thread than the loop's takes
// counts in the totals and in no update.
class EpochCounts {
 public:
  // What the loop's thread had of the loader in one update.
  struct Update {
    std::int64_t begun = 0, ended = 0;  // Epochs.
    std::int64_t failed = 0;            // Exceptions in a batch's place.
    std::int64_t batches = 0;
    double wait_s = 0;  // For epochs to begin, and for batches.
  };

  void set_thread(LoopThread thread) noexcept { thread_ = thread; }  // The loop's. Until then nothing is another's.
  // Each by the thread that calls; `wait_s`: how long it waited.
  void note_begin(LoopThread here, double wait_s) noexcept;
  void note_batch(LoopThread here, double wait_s) noexcept;
  void note_end(LoopThread here, double wait_s, std::int64_t batches) noexcept;  // Of so many batches.
  void note_failure(LoopThread here) noexcept;

  // What there was since this was asked last. Ask it once an update.
  Update take();

  // Whether the loader is seen at present: else an update without a batch of it tells nothing.
  void set_watched(bool watched) noexcept { is_watched_ = watched; }
  bool is_watched() const noexcept { return is_watched_; }

  std::int64_t begun() const noexcept { return begun_; }  // These three in all.
  std::int64_t ended() const noexcept { return ended_; }
  std::int64_t batches() const noexcept { return batches_; }
  std::int64_t own_batches() const noexcept { return own_batches_; }       // That the loop's own thread took.
  bool serves_loop() const noexcept { return serves_loop_; }               // It took one since the loop is known.
  std::optional<std::int64_t> length() const noexcept { return length_; }  // Batches of the last whole epoch.
  const std::string& problem() const noexcept { return problem_; }         // Empty: none.

 private:
  bool is_own(LoopThread here) const noexcept { return !thread_ || *thread_ == here; }
  void look_for_turns(bool has_batch);

  bool is_watched_ = false;
  std::optional<LoopThread> thread_;
  std::int64_t begun_ = 0, ended_ = 0, batches_ = 0, own_batches_ = 0;
  bool serves_loop_ = false;
  std::optional<std::int64_t> length_;
  Update update_;                                            // At hand.
  std::int64_t updates_ = 0, with_batch_ = 0, changes_ = 0;  // Of the last updates, up to 48.
  bool had_batch_ = true;
  std::string problem_;
};

class LoopUnits {
 public:
  // What the end of a step led to.
  enum class End {
    nothing,  // No unit has ended.
    first,    // The first update: what begins is the first unit.
    unit,     // unit() tells of it.
  };

  // Optimizers are numbers below `optimizers`.
  LoopUnits(std::size_t optimizers, std::shared_ptr<EpochCounts> epochs);

  // Events. What happens while is_telling() is nothing of the loop's, and no event.
  void see_call(bool has_gradients, bool trains, double numbers) noexcept;
  void see_checkpoint() noexcept;
  // An optimizer's step begins. Whether the gradients of an update are complete with it that nobody was asked about.
  bool begin_step(std::size_t optimizer, LoopThread here);
  void note_asked() noexcept { has_asked_ = true; }
  End end_step(std::size_t optimizer, LoopThread here, double now_s);
  bool is_own(LoopThread here) const noexcept { return thread_ == here; }
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
  std::optional<LoopThread> thread_;
  std::optional<double> since_s_;  // End of the update before.
  std::int64_t updates_ = 0, updates_before_epoch_ = 0;
  std::optional<std::int64_t> updates_an_epoch_;
  LiveUnit unit_;
};

}  // namespace headrace
