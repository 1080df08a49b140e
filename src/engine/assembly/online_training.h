// A recipe's training under way as the live tuner sees it: settings switched between two updates, batches replayed.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/live_loop.h>
#include <headrace/strategy_switch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/hardware/machine.h"
#include "engine/assembly/online_call.h"
#include "engine/assembly/planted_knobs.h"
#include "engine/assembly/training.h"

namespace headrace {

// A call in its sense is a micro-batch, the last one of its window. One thread: that which trains. Takes the trainer's
// on_part for itself. The destructor leaves the settings as they are.
class OnlineTraining final : public LiveLoop {
 public:
  // `training` outlives it; its recipe is the one as written.
  OnlineTraining(Training& training, const Machine& machine);
  ~OnlineTraining() override;
  OnlineTraining(const OnlineTraining&) = delete;
  OnlineTraining& operator=(const OnlineTraining&) = delete;

  // As LiveLoop's. Keys are those of recipe knobs that switch between two updates, "planted.<name>" and
  // "custom.<name>". Whatever the settings' own code throws is an Error here.
  void apply(const Settings& settings) override;
  // On top of what apply({}) makes hold, but for how data are loaded, which stays as it is. Not tried where what the
  // process has needed so far beyond what it holds, with the gradients, and half of that more, is not free:
  // out_of_memory. Error{cancelled} of a strategy passes.
  Replay replay(const Settings& reference, const Settings& candidate, ReplayUse use) override;
  // NaN where the kept batch cannot be replayed: replay() says why.
  std::optional<double> distance_between_calls() override;
  std::optional<std::int64_t> updates_left() override;
  std::int64_t queued_units() override;

  // From now on the recipe with these settings is what apply({}) makes hold: what an earlier process has kept.
  void build_on(const Settings& kept);
  const Settings& in_force() const noexcept { return in_force_; }
  std::int64_t applied_count() const noexcept { return applied_count_; }  // Calls of apply().
  // Does `work` with the recipe as it is written, but for how data are loaded.
  void as_written(const std::function<void()>& work);
  // The last call: what strategies have changed is undone. Returns those that could not be, by key, with why.
  const Settings& undo_strategies();

  // ---- What the loop around it tells ----
  // Whether each window's beginning is kept, so that it can be made again: some microseconds, and a copy of the
  // buffers. With false no call is kept any more either.
  void keep_windows(bool wanted);
  // Whether the next window's last micro-batch is kept; `before_update` is called before its update.
  void keep_next_call(bool wanted);
  void see(const Batch& batch);  // The one that is trained on next.
  void end_window() { start_.reset(); }
  // Where a window is begun and kept, everything is as it was at its beginning. False: it is not.
  bool take_window_back();
  std::function<void()> before_update;

  const StrategySwitch& strategies() const noexcept { return strategies_; }
  const StrategyContext& strategy_context() const noexcept { return strategy_context_; }

 private:
  struct WindowStart {
    Progress progress;
    at::Tensor generator;
    std::vector<at::Tensor> buffers;
  };

  Trainer& trainer() { return training_.trainer(); }
  void on_part(StepPart part);
  void switch_to(const Settings& settings);             // On the recipe as written.
  void put_in_force(const Settings& settings);          // The same; an Error, and what held before, where it cannot be.
  void apply_beside_loading(const Settings& settings);  // On the recipe as written; how data are loaded stays.
  void apply_for_call(const Settings& settings);        // The same on top of what was kept before.
  void with_settings_back(const std::function<void()>& work);
  Replay replay_kept(const Settings& reference, const Settings& candidate);
  void make_reference(const Settings& settings);
  void check_room() const;
  std::int64_t batches_ahead() const;

  Training& training_;
  const Recipe written_;
  const std::optional<std::int64_t> memory_limit_;  // Bytes.
  PlantedKnobs planted_;
  StrategySwitch strategies_;
  StrategyContext strategy_context_;
  Settings kept_before_, in_force_, actual_;  // The last: on the recipe as written, also within a replay.
  std::int64_t applied_count_ = 0;
  std::int64_t queue_before_;  // Batches that might lie ready under the settings before those in force.
  bool keeps_windows_ = false, keeps_call_ = false;
  std::optional<WindowStart> start_;
  OnlineCall call_;
  std::optional<CallResult> reference_;  // Of the call at hand, under reference_settings_.
  Settings reference_settings_;
  // Gradients of the call at hand, and of the one kept before it, as apply({}) has them; empty: not known.
  std::vector<at::Tensor> plain_, plain_before_;
};

}  // namespace headrace
