// A trainer's averages in the place of its model's weights.
#pragma once

#include <headrace/trainer.h>

#include <optional>

#include "torch/tensor/kept_values.h"

namespace headrace {

// The model's tensors hold the averages for its life, and what they held before afterwards, bit for bit, whatever was
// written over them meanwhile; the averages stay as they are. Nothing happens where the trainer keeps none. The trainer
// may end before it.
class ShownAverages {
 public:
  explicit ShownAverages(Trainer& trainer);

 private:
  std::optional<KeptValues> weights_;
};

}  // namespace headrace
