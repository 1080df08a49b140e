#include "torch/numerics/clip.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

// One norm over a large float32 tensor adds up in float32: 2e-6 off at 400,000 elements, 1e-4 at 5 million, on one
// thread, and then the clipped norm is above norm_max. In pieces of this many it is 1e-7, at the same speed.
constexpr std::int64_t kPiece = 16'384;

// All elements of `gradients`, as one-dimensional views of at most kPiece elements.
std::vector<at::Tensor> pieces_of(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() <= kPiece) {
      pieces.push_back(gradient);
      continue;
    }
    const at::Tensor flat = gradient.is_non_overlapping_and_dense()
                                ? at::as_strided(gradient, {gradient.numel()}, {1}, gradient.storage_offset())
                                : gradient.flatten();
    for (at::Tensor& piece : flat.split(kPiece)) pieces.push_back(std::move(piece));
  }
  return pieces;
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  const at::Tensor norms = at::stack(at::_foreach_norm(pieces_of(gradients), 2)).to(at::kDouble);
  return at::linalg_vector_norm(norms, 2).item<double>();
}

bool all_finite(const std::vector<at::Tensor>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(),
                     [](const at::Tensor& gradient) { return at::isfinite(gradient).all().item<bool>(); });
}

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& gradients, double norm_max, double factor) {
  if (gradients.empty()) return 0.0;
  c10::AutoGradMode no_graph(false);
  double norm = norm_of(gradients) * factor;
  if (!std::isfinite(norm) && factor != 1.0 && all_finite(gradients)) {
    at::_foreach_mul_(gradients, factor);
    factor = 1.0;
    norm = norm_of(gradients);
  }
  if (!std::isfinite(norm)) return norm;
  const double scale = factor * std::min(1.0, norm_max / (norm + 1e-6));  // PyTorch's guard against a norm of zero.
  if (scale != 1.0) at::_foreach_mul_(gradients, scale);
  return norm;
}

}  // namespace headrace
