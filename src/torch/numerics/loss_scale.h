// What keeps small gradients above the smallest number of a reduced type: the loss is multiplied before backward, the
// gradients are divided before the update. The rule of torch.amp.GradScaler with its own constants: an update whose
// gradients are not finite is left out and halves the scale, 2000 good ones in a row double it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace headrace {

struct LossScale {
  double scale = 1.0;
  std::int64_t good_updates = 0;  // In a row, since the scale changed.

  // What it is after an update, left out where the gradients were not `finite`. Error{numerics} when it has come down
  // to 2^-24: the gradients are not finite whatever the scale.
  LossScale after(bool finite) const;
};

// Divides the gradients in place; false when one of them is not finite, and their values mean nothing then. One pass,
// and one host read of a scalar.
bool unscale_gradients(const std::vector<at::Tensor>& gradients, double scale);

}  // namespace headrace
