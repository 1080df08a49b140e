#include "engine/assembly/online_run.h"

#include <exception>

#include "torch/tensor/translate.h"

namespace headrace {

LoopEnd OnlineRun::run_epoch(const std::function<void(const StepDone&)>& on_step) {
  Trainer& trainer = training_.trainer();
  const auto behind_step = [&](const StepDone& done) {
    after_step(done);
    if (on_step) on_step(done);
  };
  while (true) {
    Epoch epoch = training_.loader().epoch(trainer.progress().epoch, trainer.progress().batch);
    try {
      return run_steps(trainer, stream(epoch), epoch.batches(), behind_step);
    } catch (...) {
      if (!take_back(translate(std::current_exception()))) throw;
    }
  }
}

}  // namespace headrace
