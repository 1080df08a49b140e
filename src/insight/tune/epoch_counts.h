// What a loop takes from its loader: told event by event by the iterator that stands in the loader's place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace headrace
