#include <headrace/trainer.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kTop5 = 5;

// Samples of the batch that count and are right.
std::int64_t count_right(const TensorBatch& batch, const at::Tensor& is_right) {
  const at::Tensor counted = batch.valid.defined() ? is_right.logical_and(batch.valid) : is_right;
  return counted.sum().item<std::int64_t>();
}

}  // namespace

Evaluation evaluate(Trainer& trainer, Loader& loader, const Forward& forward, const std::function<bool()>& stop) {
  Evaluation result;
  double loss_sum = 0, weight_sum = 0;
  std::int64_t right = 0;
  std::optional<std::int64_t> right_top5;
  Epoch epoch = loader.epoch(0);
  while (const std::optional<Batch> host = epoch.next()) {
    if (stop && stop())
      fail(ErrorCode::cancelled, "train: the evaluation was stopped after {} samples", result.samples);
    const TensorBatch batch = trainer.transfer(*host);
    const Output output = trainer.evaluate(batch, forward);
    const auto logits = output.named.find("logits");
    if (logits == output.named.end()) {
      fail(ErrorCode::invalid_argument, "train: evaluation needs a named output \"logits\" of the forward");
    }
    const std::int64_t samples = batch.counted();
    const double weight = output.weight_or(samples);
    if (weight > 0) {  // The mean of nothing may be NaN.
      loss_sum += output.loss.item<double>() * weight;
      weight_sum += weight;
    }
    const at::Tensor& labels = batch["labels"];
    right += count_right(batch, logits->second.argmax(1).eq(labels));
    if (logits->second.size(1) > kTop5) {
      const at::Tensor top5 = std::get<1>(logits->second.topk(kTop5, 1));
      right_top5 = right_top5.value_or(0) + count_right(batch, top5.eq(labels.unsqueeze(1)).any(/*dim=*/1));
    }
    result.samples += samples;
  }
  if (result.samples > 0) {
    result.loss = weight_sum > 0 ? loss_sum / weight_sum : std::numeric_limits<double>::quiet_NaN();
    result.accuracy = static_cast<double>(right) / static_cast<double>(result.samples);
    if (right_top5) result.top5_accuracy = static_cast<double>(*right_top5) / static_cast<double>(result.samples);
  }
  return result;
}

}  // namespace headrace
