// A recipe's training that repeats one that tuned itself.
#pragma once

#include <headrace/live_replay.h>

#include <string>

#include "engine/assembly/online_run.h"

namespace headrace {

// Errors of LiveReplay, whose turns it applies. Where the trainer goes on from a checkpoint, what held there holds.
class OnlineReplay final : public OnlineRun {
 public:
  // `source` names the ledger in errors: its file.
  OnlineReplay(Training& training, const Machine& machine, LiveLedger ledger, std::string source);

  const LiveReplay& replay() const noexcept { return replay_; }

 private:
  void after_step(const StepDone& done) override;

  LiveReplay replay_;
};

}  // namespace headrace
