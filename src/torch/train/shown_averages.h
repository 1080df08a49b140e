// A trainer's averages in the place of its model's weights.
#pragma once

#include <headrace/trainer.h>

#include <optional>

#include "torch/tensor/kept_values.h"

namespace headrace {

// While it lives, the model's tensors hold the averages; when it ends, they get back what they held before, bit for
// bit, whatever was written over them meanwhile. The averages themselves stay as they are. Does nothing where the
// trainer keeps none. The trainer may be destroyed first.
class ShownAverages {
 public:
  explicit ShownAverages(Trainer& trainer);

 private:
  std::optional<KeptValues> weights_;
};

}  // namespace headrace
