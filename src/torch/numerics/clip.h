// Gradient clipping by the L2 norm of all gradients together, as torch.nn.utils.clip_grad_norm_, after
// torch.amp.GradScaler.unscale_ where there is a loss scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace headrace {

// Multiplies the gradients in place by `factor`, which takes a loss scale off, and scales them so that their joint norm
// is at most norm_max, both in one pass; returns the norm between the two. A norm that is not finite is returned and
// the gradients stay as they are (PyTorch would fill them with NaN). One host read of a scalar. With a factor,
// gradients that are finite and whose norm is only beyond float32 before it are clipped nonetheless, in two more
// passes.
double clip_gradients(const std::vector<at::Tensor>& gradients, double norm_max, double factor = 1.0);

}  // namespace headrace
