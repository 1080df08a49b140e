#include "torch/numerics/loss_scale.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kGrowth = 2.0, kBackoff = 0.5;
constexpr std::int64_t kGoodUpdates = 2000;
constexpr double kScaleMin = 1.0 / (1 << 24), kScaleMax = 0x1p126;  // Its inverse is a normal float32.

}  // namespace

LossScale LossScale::after(bool finite) const {
  if (!finite) {
    if (scale * kBackoff <= kScaleMin) {
      fail(ErrorCode::numerics, "train: the gradients are not finite, down to a loss scale of {}", scale);
    }
    return {scale * kBackoff, 0};
  }
  if (good_updates + 1 < kGoodUpdates) return {scale, good_updates + 1};
  return {scale * kGrowth <= kScaleMax ? scale * kGrowth : scale, 0};
}

bool unscale_gradients(const std::vector<at::Tensor>& gradients, double scale) {
  if (gradients.empty()) return true;
  c10::AutoGradMode no_graph(false);
  const auto options = gradients.front().options().dtype(at::kFloat);
  at::Tensor not_finite = at::zeros({1}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, not_finite, at::full({1}, 1.0 / scale, options));
  return not_finite.item<float>() == 0.0F;
}

}  // namespace headrace
