// Gradient clipping by the L2 norm of all gradients together, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace headrace {

// Scales the gradients in place so that their joint norm is at most norm_max; returns the norm before. A norm that is
// not finite is returned and the gradients stay as they are (PyTorch would fill them with NaN). One host read of a
// scalar.
double clip_gradients(const std::vector<at::Tensor>& gradients, double norm_max);

}  // namespace headrace
