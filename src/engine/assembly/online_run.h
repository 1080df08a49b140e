// A recipe's training whose settings change between its updates: what the loop around it tells and asks.
#pragma once

#include <headrace/error.h>
#include <headrace/loader.h>

#include <cstdint>
#include <functional>
#include <string>

#include "engine/assembly/online_training.h"
#include "engine/assembly/training.h"
#include "torch/train/loop.h"

namespace headrace {

// Updates that a run has made, those among them that the loss scale left out.
inline std::int64_t updates_of(const Progress& progress) {
  return progress.optimizer_steps + progress.skipped_updates;
}

// One thread: that which trains.
class OnlineRun {
 public:
  // `training` outlives it; its recipe is the one as written.
  OnlineRun(Training& training, const Machine& machine) : training_(training), loop_(training, machine) {}
  virtual ~OnlineRun() = default;

  // Steps through the rest of the epoch at which the trainer stands, as run_steps(), whose errors it has; `on_step` is
  // called behind what is done between two updates.
  LoopEnd run_epoch(const std::function<void(const StepDone&)>& on_step);
  // Evaluations are made so: each is then of the same arithmetic, and `headrace eval` of the recipe finds the same.
  void as_written(const std::function<void()>& work) { loop_.as_written(work); }
  // Something that is no step was done since the last update: "a checkpoint was written".
  virtual void taint(const std::string& /*why*/) {}
  // What a checkpoint made now has to say of it; empty: nothing.
  virtual std::string checkpoint_text() const { return {}; }
  // No further step comes.
  virtual void end(const std::string& /*why*/) {}
  // The last call, behind the last evaluation: as OnlineTraining's.
  const Settings& undo_strategies() { return loop_.undo_strategies(); }

 protected:
  virtual BatchStream stream(Epoch& epoch) {
    return {[&epoch] { return epoch.next(); }, epoch.batches()};
  }
  virtual void after_step(const StepDone& done) = 0;
  // A step threw. Whether its window can be made again under other settings, from its beginning, where the trainer
  // stands then.
  virtual bool take_back(const Error& /*error*/) { return false; }

  Training& training_;
  OnlineTraining loop_;
};

}  // namespace headrace
