#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
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

// What one forward says, on the model's device.
struct Figures {
  at::Tensor loss{};  // Times its weight, float64; undefined where nothing counts.
  double weight = 0;
  std::int64_t samples = 0, classes = 0;
  at::Tensor labels{}, predicted{};  // (N) int64; a label that is no class is `classes`.
  at::Tensor counted{};              // (N) int64: 1 where the sample counts.
  at::Tensor right{};                // (N) int64: 1 where it counts and is right.
  at::Tensor right_top5{};           // One number; undefined: at most five classes.
};

Figures figures_of(const TensorBatch& batch, const Output& output) {
  const auto found = output.named.find("logits");
  if (found == output.named.end()) {
    fail(ErrorCode::invalid_argument, "train: evaluation needs a named output \"logits\" of the forward");
  }
  const at::Tensor& logits = found->second;
  Figures figures{.samples = batch.counted(), .classes = logits.size(1)};
  const double weight = output.weight_or(output.samples.value_or(figures.samples));
  if (weight > 0) {  // The mean of nothing may be NaN.
    figures.loss = output.loss.to(at::kDouble).mul(weight);
    figures.weight = weight;
  }
  if (batch["labels"].dim() != 1) {
    fail(ErrorCode::invalid_argument, "train: evaluation: wanted labels of one class a sample, found ({})",
         fmt::join(batch["labels"].sizes(), ", "));
  }
  const at::Tensor labels = batch["labels"].to(logits.device(), at::kLong);
  figures.counted = batch.valid.defined() ? batch.valid.to(logits.device()).ne(0).to(at::kLong) : at::ones_like(labels);
  figures.predicted = logits.argmax(1);
  figures.right = figures.predicted.eq(labels).to(at::kLong).mul(figures.counted);
  if (figures.classes > kTop5) {
    const at::Tensor top5 = std::get<1>(logits.topk(kTop5, 1)).eq(labels.unsqueeze(1)).any(/*dim=*/1);
    figures.right_top5 = top5.to(at::kLong).mul(figures.counted).sum();
  }
  const at::Tensor is_class = labels.ge(0).logical_and(labels.lt(figures.classes));
  figures.labels = at::where(is_class, labels, figures.classes);
  return figures;
}

// Of all batches, on the model's device.
class Sums {
 public:
  std::int64_t samples() const { return samples_; }

  void add(const Figures& more) {
    if (!counts_.defined()) {
      classes_ = more.classes;
      counts_ = at::zeros({kRows, classes_ + 1}, more.labels.options());
    }
    if (classes_ != more.classes) {
      fail(ErrorCode::invalid_argument, "train: evaluation: wanted {} logits as before, found {}", classes_,
           more.classes);
    }
    counts_.select(0, kSamples).scatter_add_(0, more.labels, more.counted);
    counts_.select(0, kRight).scatter_add_(0, more.labels, more.right);
    counts_.select(0, kPredicted).scatter_add_(0, more.predicted, more.counted);
    if (more.loss.defined()) loss_ = loss_.defined() ? loss_.add(more.loss) : more.loss;
    if (more.right_top5.defined()) top5_ = top5_.defined() ? top5_.add(more.right_top5) : more.right_top5;
    weight_ += more.weight;
    samples_ += more.samples;
  }

  // Waits for the device.
  Evaluation read() const {
    Evaluation result;
    result.samples = samples_;
    if (samples_ == 0) return result;
    const auto samples = static_cast<double>(samples_);
    result.loss = weight_ > 0 ? loss_.item<double>() / weight_ : std::numeric_limits<double>::quiet_NaN();
    if (top5_.defined()) result.top5_accuracy = static_cast<double>(top5_.item<std::int64_t>()) / samples;
    const at::Tensor counts = counts_.cpu();
    const auto count = counts.accessor<std::int64_t, 2>();
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < classes_; ++i) {
      result.classes.push_back({count[kSamples][i], count[kRight][i], count[kPredicted][i]});
      right += count[kRight][i];
    }
    result.accuracy = static_cast<double>(right) / samples;
    return result;
  }

 private:
  enum Row : std::int64_t { kSamples, kRight, kPredicted, kRows };

  double weight_ = 0;
  std::int64_t samples_ = 0, classes_ = 0;
  at::Tensor counts_;       // (kRows, classes + 1) int64; the last column is of labels that are no class.
  at::Tensor loss_, top5_;  // One number each; undefined: nothing was added.
};

// nullopt: memory ran out, and there are fewer samples to try.
std::optional<Figures> figures_if_it_fits(Trainer& trainer, const TensorBatch& batch, const Forward& forward) {
  try {
    return figures_of(batch, trainer.evaluate(batch, forward));
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
    if (stop && stop())
      fail(ErrorCode::cancelled, "train: the evaluation was stopped after {} samples", sums.samples());
    const TensorBatch batch = trainer.transfer(*host);
    const std::int64_t size = batch.size();
    for (std::int64_t begin = 0; begin < size;) {
      const std::int64_t end = begin + part_size(size - begin, at_once);
      const bool is_whole = end - begin == size;
      const std::optional<Figures> some =
          figures_if_it_fits(trainer, is_whole ? batch : batch.part(begin, end), forward);
      if (some) {
        sums.add(*some);
        begin = end;
      } else {
        at_once = (end - begin + 1) / 2;
      }
    }
  }
  return sums.read();
}

}  // namespace headrace
