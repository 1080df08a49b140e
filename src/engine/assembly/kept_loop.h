// A training loop that is left as it was, whatever forwards and backwards are made meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <vector>

#include "engine/assembly/state.h"

namespace headrace {

// Puts back at the end of its life what a forward and backward change: the gradients that the parameters had, which
// have none once it is made, the buffers, the default generator, and the micro-batches that wait in the window, with
// their weights. Layouts are the caller's: gradients come back as they were laid out.
class KeptLoop {
 public:
  explicit KeptLoop(Trainer& trainer);
  ~KeptLoop();
  KeptLoop(const KeptLoop&) = delete;
  KeptLoop& operator=(const KeptLoop&) = delete;

 private:
  Trainer& trainer_;
  const std::int64_t window_;
  const double window_weight_, largest_weight_;
  const at::Tensor generator_;
  const KeptValues buffers_;
  std::vector<at::Tensor> gradients_;  // As the parameters stand; undefined where there was none.
};

// The gradients that the parameters have, in their order; the parameters have none afterwards.
std::vector<at::Tensor> take_gradients(const NamedTensors& parameters);

}  // namespace headrace
