#include "torch/train/loop.h"

#include <headrace/trace.h>

#include <optional>

#include "core/base/clock.h"
#include "core/exec/stop.h"

namespace headrace {
namespace {

std::optional<Batch> wait_for_batch(const BatchStream& stream) {
  Span span{step::kDataWait};
  return stream.next();
}

}  // namespace

LoopEnd run_steps(Trainer& trainer, Epoch& epoch, std::int64_t batches_max,
                  const std::function<void(const StepDone&)>& on_step) {
  return run_steps(trainer, {[&epoch] { return epoch.next(); }, epoch.batches()}, batches_max, on_step);
}

LoopEnd run_steps(Trainer& trainer, const BatchStream& stream, std::int64_t batches_max,
                  const std::function<void(const StepDone&)>& on_step) {
  const auto end_epoch = [&trainer] {
    ++trainer.progress().epoch;
    trainer.progress().batch = 0;
    return LoopEnd::epoch;
  };
  for (std::int64_t done = 0; done < batches_max; ++done) {
    if (stop_signal() != 0 && trainer.progress().window == 0) return LoopEnd::stopped;
    const std::int64_t begin_ns = monotonic_ns();
    begin_traced_step(trainer.progress().batch);
    Span span{step::kStep, trainer.progress().batch};
    const std::optional<Batch> batch = wait_for_batch(stream);
    if (!batch) return end_epoch();
    const bool last = batch->index() + 1 == stream.batches;
    const at::Tensor loss = trainer.step(*batch, last);
    if (on_step) on_step({trainer.progress(), loss, batch->size(), monotonic_ns() - begin_ns});
    if (last) return end_epoch();
  }
  return LoopEnd::count;
}

}  // namespace headrace
