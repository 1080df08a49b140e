#include "numerics/clip.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

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

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& gradients, double norm_max) {
  if (gradients.empty()) return 0.0;
  c10::AutoGradMode no_graph(false);
  const at::Tensor norms = at::stack(at::_foreach_norm(pieces_of(gradients), 2)).to(at::kDouble);
  const double norm = at::linalg_vector_norm(norms, 2).item<double>();
  const double scale = norm_max / (norm + 1e-6);  // PyTorch's guard against a norm of zero.
  if (std::isfinite(norm) && scale < 1.0) at::_foreach_mul_(gradients, scale);
  return norm;
}

}  // namespace headrace
