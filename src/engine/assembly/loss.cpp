#include "engine/assembly/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace headrace {
namespace {

constexpr std::int64_t kIgnoredLabel = -100;  // torch's default for ignore_index; no source gives it.

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& class_weights,
                         std::int64_t reduction, double label_smoothing) {
  std::optional<at::Tensor> weights;
  if (class_weights.defined()) weights = class_weights;
  return at::cross_entropy_loss(logits, labels, weights, reduction, kIgnoredLabel, label_smoothing);
}

// 1 for the label's class and 0 for the others, less what smoothing spreads evenly: (N, classes).
at::Tensor targets_of(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  const std::int64_t classes = logits.size(1);
  const at::Tensor targets = at::one_hot(labels, classes).to(logits.scalar_type());
  if (label_smoothing == 0) return targets;
  return targets.mul(1 - label_smoothing).add(label_smoothing / static_cast<double>(classes));
}

// Of each sample: (N).
at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& class_weights,
                     const LossOptions& options) {
  if (options.name == LossName::cross_entropy) {
    return cross_entropy(logits, labels, class_weights, at::Reduction::None, options.label_smoothing);
  }
  const at::Tensor targets = targets_of(logits, labels, options.label_smoothing);
  const at::Tensor of_each = options.name == LossName::bce
                                 ? at::binary_cross_entropy_with_logits(logits, targets, {}, {}, at::Reduction::None)
                                 : at::mse_loss(logits, targets, at::Reduction::None);
  return of_each.mean(1);
}

Output with_logits(at::Tensor loss, at::Tensor logits) {
  return Output{std::move(loss), {{"logits", std::move(logits)}}};
}

// The losses have their weights already.
Output weighted_mean(const at::Tensor& losses, const at::Tensor& class_weights, at::Tensor logits,
                     const TensorBatch& batch) {
  at::Tensor counted = class_weights.index_select(0, batch["labels"]);
  if (batch.valid.defined()) counted = counted.mul(batch.valid);
  const double sum = counted.sum().item<double>();
  const at::Tensor loss = batch.valid.defined() ? losses.mul(batch.valid) : losses;
  Output output = with_logits(loss.sum().div(sum > 0 ? sum : 1.0), std::move(logits));
  output.weight = sum;
  return output;
}

}  // namespace

Output classification(at::Tensor logits, const TensorBatch& batch, const LossOptions& options) {
  const at::Tensor labels = batch["labels"];
  // Autocast leaves logits in 16 bits, of which not every loss is computed in float32.
  const at::Tensor exact = c10::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
  if (!options.class_weights.empty()) {
    const at::Tensor class_weights = at::tensor(at::ArrayRef<double>(options.class_weights), exact.options());
    return weighted_mean(losses_of(exact, labels, class_weights, options), class_weights, std::move(logits), batch);
  }
  if (options.name == LossName::cross_entropy && !batch.valid.defined()) {
    at::Tensor loss = cross_entropy(logits, labels, {}, at::Reduction::Mean, options.label_smoothing);
    return with_logits(std::move(loss), std::move(logits));
  }
  const at::Tensor losses = losses_of(options.name == LossName::cross_entropy ? logits : exact, labels, {}, options);
  if (!batch.valid.defined()) return with_logits(losses.mean(), std::move(logits));
  const auto counted = static_cast<double>(std::max<std::int64_t>(batch.counted(), 1));
  return with_logits(losses.mul(batch.valid).sum().div(counted), std::move(logits));
}

}  // namespace headrace
