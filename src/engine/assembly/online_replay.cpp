#include "engine/assembly/online_replay.h"

#include <utility>

namespace headrace {

OnlineReplay::OnlineReplay(Training& training, const Machine& machine, LiveLedger ledger, std::string source)
    : OnlineRun(training, machine), replay_(loop_, std::move(ledger), std::move(source)) {
  replay_.begin(updates_of(training.trainer().progress()));
}

void OnlineReplay::after_step(const StepDone& done) {
  if (done.progress.window == 0) replay_.after_update(updates_of(done.progress));
}

}  // namespace headrace
