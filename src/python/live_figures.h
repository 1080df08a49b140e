// What a Trainer at work tells another Python thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/trainer.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "torch/device/accelerator.h"

namespace headrace::python {

// A copy that steps make at their end. Everything here runs under the GIL, which a step holds only at its beginning and
// end, so that a reader never meets a step half done.
class LiveFigures {
 public:
  // A step of `samples` is done; `loss` is its own, detached, and computed at that moment, or by now where it is
  // nullptr. Reads nothing of a device.
  void note_step(const Progress& progress, const at::Tensor& loss, std::int64_t samples,
                 std::shared_ptr<const DeviceMoment> computed);
  // The place has changed without a step: by an update that closed a window, an epoch's end, or a checkpoint.
  void note_place(const Progress& progress);
  // A dict, as Trainer.live() documents it. Waits for a loss that a device has not computed yet, without the GIL.
  pybind11::dict told() const;

 private:
  // Samples done at a moment.
  struct Mark {
    std::int64_t ns = 0;
    std::int64_t samples = 0;
  };

  std::int64_t epoch_ = 0, batch_ = 0, optimizer_steps_ = 0, skipped_updates_ = 0;
  std::int64_t steps_ = 0;
  Mark last_{};              // The last step's end.
  Mark recent_{}, older_{};  // Ends of steps a second or more apart; the rate is that since the older one.
  at::Tensor loss_{};        // Of the last step; undefined before the first.
  // The reader's stream knows nothing of the step's. Owners: this, and a reader that waits for it.
  std::shared_ptr<const DeviceMoment> computed_{};
};

}  // namespace headrace::python
