// The loop over the batches of an epoch: waits, steps, windows at the epoch's end, requests to stop.
#pragma once

#include <headrace/loader.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace headrace {

struct StepDone {
  const Progress& progress;  // After the step.
  const at::Tensor& loss;    // Of this batch, detached.
  std::int64_t samples;
  std::int64_t step_ns;  // From asking for the batch to the end of the update.
};

enum class LoopEnd {
  epoch,    // The last batch is done; progress stands at batch 0 of the next epoch.
  count,    // `batches_max` are done.
  stopped,  // stop_signal() asked for it; no window is open, so a checkpoint may be written.
};

// The next batch of a pass that has `batches` of them, or nullopt after the last.
struct BatchStream {
  std::function<std::optional<Batch>()> next;
  std::int64_t batches;
};

// Steps through at most `batches_max` further batches of `epoch`. Records step::kStep and step::kDataWait beside the
// trainer's spans. The window that the last batch of the epoch leaves short is closed by an update. A stop request is
// heard between windows. `on_step` may do as it likes but step the trainer; its time is the step's, in no part of it.
LoopEnd run_steps(Trainer& trainer, Epoch& epoch, std::int64_t batches_max,
                  const std::function<void(const StepDone&)>& on_step = {});
LoopEnd run_steps(Trainer& trainer, const BatchStream& stream, std::int64_t batches_max,
                  const std::function<void(const StepDone&)>& on_step = {});

}  // namespace headrace
