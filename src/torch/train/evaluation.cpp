#include <headrace/trainer.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <tuple>

#include "core/base/fail.h"
#include "torch/train/micro_batch.h"

namespace headrace {
namespace {

constexpr std::int64_t kTop5 = 5;

struct Sums {
  double loss = 0, weight = 0;  // Losses times their weights, and these.
  std::int64_t samples = 0, right = 0;
  std::optional<std::int64_t> right_top5{};

  void add(const Sums& more) {
    loss += more.loss;
    weight += more.weight;
    samples += more.samples;
    right += more.right;
    if (more.right_top5) right_top5 = right_top5.value_or(0) + *more.right_top5;
  }
};

// Samples of the batch that count and are right.
std::int64_t count_right(const TensorBatch& batch, const at::Tensor& is_right) {
  const at::Tensor counted = batch.valid.defined() ? is_right.logical_and(batch.valid.to(is_right.device())) : is_right;
  return counted.sum().item<std::int64_t>();
}

Sums sums_of(const TensorBatch& batch, const Output& output) {
  const auto logits = output.named.find("logits");
  if (logits == output.named.end()) {
    fail(ErrorCode::invalid_argument, "train: evaluation needs a named output \"logits\" of the forward");
  }
  Sums sums{.samples = batch.counted()};
  const double weight = output.weight_or(output.samples.value_or(sums.samples));
  if (weight > 0) {  // The mean of nothing may be NaN.
    sums.loss = output.loss.item<double>() * weight;
    sums.weight = weight;
  }
  const at::Tensor labels = batch["labels"].to(logits->second.device());
  sums.right = count_right(batch, logits->second.argmax(1).eq(labels));
  if (logits->second.size(1) > kTop5) {
    const at::Tensor top5 = std::get<1>(logits->second.topk(kTop5, 1));
    sums.right_top5 = count_right(batch, top5.eq(labels.unsqueeze(1)).any(/*dim=*/1));
  }
  return sums;
}

// nullopt: memory ran out, and there are fewer samples to try.
std::optional<Sums> sums_if_it_fits(Trainer& trainer, const TensorBatch& batch, const Forward& forward) {
  try {
    return sums_of(batch, trainer.evaluate(batch, forward));
  } catch (...) {
    const bool may_halve = trainer.options().on_out_of_memory == OutOfMemoryPolicy::halve && batch.size() > 1;
    if (!may_halve || !out_of_memory_reason(std::current_exception())) throw;
    return std::nullopt;
  }
}

}  // namespace

Evaluation evaluate(Trainer& trainer, Loader& loader, const Forward& forward, const std::function<bool()>& stop) {
  Sums sums;
  std::int64_t at_once = trainer.progress().micro_batch;  // 0: all of a batch.
  Epoch epoch = loader.epoch(0);
  while (const std::optional<Batch> host = epoch.next()) {
    if (stop && stop()) fail(ErrorCode::cancelled, "train: the evaluation was stopped after {} samples", sums.samples);
    const TensorBatch batch = trainer.transfer(*host);
    const std::int64_t size = batch.size();
    for (std::int64_t begin = 0; begin < size;) {
      const std::int64_t end = begin + part_size(size - begin, at_once);
      const bool is_whole = end - begin == size;
      const std::optional<Sums> some = sums_if_it_fits(trainer, is_whole ? batch : batch.part(begin, end), forward);
      if (some) {
        sums.add(*some);
        begin = end;
      } else {
        at_once = (end - begin + 1) / 2;
      }
    }
  }
  Evaluation result;
  result.samples = sums.samples;
  if (result.samples > 0) {
    const auto samples = static_cast<double>(result.samples);
    result.loss = sums.weight > 0 ? sums.loss / sums.weight : std::numeric_limits<double>::quiet_NaN();
    result.accuracy = static_cast<double>(sums.right) / samples;
    if (sums.right_top5) result.top5_accuracy = static_cast<double>(*sums.right_top5) / samples;
  }
  return result;
}

}  // namespace headrace
