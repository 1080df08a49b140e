#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>
#include <headrace/loss.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kIgnoredLabel = -100;  // torch's default for ignore_index; no source gives it.

// A class for each sample, (N) int64, or a target for each logit, (N, classes) of the logits' dtype.
at::Tensor checked_labels(const at::Tensor& labels, const at::Tensor& logits) {
  const bool is_class = labels.dim() == 1 && labels.scalar_type() == at::kLong;
  if (is_class && labels.size(0) == logits.size(0)) return labels;
  const bool is_one_number = labels.dim() == 1 && labels.is_floating_point() && logits.size(1) == 1;
  const at::Tensor targets = is_one_number ? labels.unsqueeze(1) : labels;
  if (targets.sizes() == logits.sizes()) return targets.to(logits.scalar_type());
  fail(ErrorCode::invalid_argument,
       "loss: wanted labels of a class a sample, int64 [{}], or of a target for each of [{}] logits, found {} [{}]",
       logits.size(0), fmt::join(logits.sizes(), ", "), c10::toString(labels.scalar_type()),
       fmt::join(labels.sizes(), ", "));
}

bool are_classes(const at::Tensor& labels) {
  return labels.dim() == 1;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& class_weights,
                         std::int64_t reduction, double label_smoothing) {
  std::optional<at::Tensor> weights;
  if (class_weights.defined()) weights = class_weights;
  return at::cross_entropy_loss(logits, labels, weights, reduction, kIgnoredLabel, label_smoothing);
}

// Of a class 1 for it and 0 for the others; less what smoothing spreads evenly: (N, classes).
at::Tensor targets_of(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  const std::int64_t classes = logits.size(1);
  const at::Tensor targets = are_classes(labels) ? at::one_hot(labels, classes).to(logits.scalar_type()) : labels;
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

// Of the labels that count, which lie on the host as a batch brings them: no operator, and nothing is waited for.
double weight_of(const TensorBatch& batch, const std::vector<double>& class_weights) {
  const at::Tensor labels = batch["labels"].cpu().contiguous();
  const at::Tensor valid = batch.valid.defined() ? batch.valid.cpu().contiguous() : at::Tensor{};
  const std::int64_t* of_sample = labels.const_data_ptr<std::int64_t>();
  const std::uint8_t* counts = valid.defined() ? valid.const_data_ptr<std::uint8_t>() : nullptr;
  double sum = 0;
  for (std::int64_t i = 0; i < labels.size(0); ++i) {
    if (counts != nullptr && counts[i] == 0) continue;
    sum += class_weights.at(static_cast<std::size_t>(of_sample[i]));
  }
  return sum;
}

// The losses have their weights already.
Output weighted_mean(const at::Tensor& losses, double weight, at::Tensor logits, const TensorBatch& batch) {
  const at::Tensor loss = batch.valid.defined() ? losses.mul(batch.valid) : losses;
  Output output = with_logits(loss.sum().div(weight > 0 ? weight : 1.0), std::move(logits));
  output.weight = weight;
  return output;
}

}  // namespace

Output classification(at::Tensor logits, const TensorBatch& batch, const LossOptions& options) {
  // Autocast leaves logits in 16 bits, of which not every loss is computed in float32.
  const at::Tensor exact = c10::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
  const at::Tensor labels = checked_labels(batch["labels"], exact);
  at::Tensor class_weights;
  if (!options.class_weights.empty()) {
    class_weights = at::tensor(at::ArrayRef<double>(options.class_weights), exact.options());
    const at::Tensor losses = losses_of(exact, labels, class_weights, options);
    if (are_classes(labels)) {
      return weighted_mean(losses, weight_of(batch, options.class_weights), std::move(logits), batch);
    }
    // Of targets that are shares PyTorch divides by the samples, whatever their weights.
    return weighted_mean(losses, static_cast<double>(batch.counted()), std::move(logits), batch);
  }
  const at::Tensor& as_they_are = options.name == LossName::cross_entropy && are_classes(labels) ? logits : exact;
  if (options.name == LossName::cross_entropy && !batch.valid.defined()) {
    at::Tensor loss = cross_entropy(as_they_are, labels, {}, at::Reduction::Mean, options.label_smoothing);
    return with_logits(std::move(loss), std::move(logits));
  }
  const at::Tensor losses = losses_of(as_they_are, labels, {}, options);
  if (!batch.valid.defined()) return with_logits(losses.mean(), std::move(logits));
  const auto counted = static_cast<double>(std::max<std::int64_t>(batch.counted(), 1));
  return with_logits(losses.mul(batch.valid).sum().div(counted), std::move(logits));
}

}  // namespace headrace
