// Taking a loss scale off gradients, with the check whether they are finite, in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace headrace {

// Divides the gradients by `scale`, a float32 number, in place. Returns one number a device, above 0 where a gradient
// on it is not finite; the values mean nothing then. No host read. Error{invalid_argument}: a gradient of float16,
// which a loss scale is there to keep gradients away from.
std::vector<at::Tensor> unscale_gradients(const std::vector<at::Tensor>& gradients, double scale);

// Whether one of these numbers is above 0; one host read each.
bool any_found(const std::vector<at::Tensor>& found_inf);

}  // namespace headrace
