#include "numerics/clip.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace headrace {

double clip_gradients(const std::vector<at::Tensor>& gradients, double norm_max) {
  if (gradients.empty()) return 0.0;
  c10::AutoGradMode no_graph(false);
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  const float total = norm.item<float>();
  // float32 and in this order, as PyTorch: reciprocal first.
  const float scale = 1.0F / (total + 1e-6F) * static_cast<float>(norm_max);
  if (std::isfinite(total) && scale < 1.0F) at::_foreach_mul_(gradients, scale);
  return total;
}

}  // namespace headrace
