// What a TrainingJob tells beside its times, for the verdict over resources.
#include <ATen/core/Tensor.h>
#include <headrace/trace.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/exec/stop.h"
#include "data/source/sample_reader.h"
#include "engine/assembly/kept_loop.h"
#include "engine/assembly/training_job.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/matrix_product.h"
#include "torch/train/operator_flops.h"

namespace headrace {
namespace {

PartUseCounter::Part part_of(StepPart part) {
  switch (part) {
    case StepPart::transfer:
      return PartUseCounter::Part::transfer;
    case StepPart::forward:
      return PartUseCounter::Part::forward;
    case StepPart::backward:
      return PartUseCounter::Part::backward;
    case StepPart::optimizer:
      return PartUseCounter::Part::optimizer;
  }
  return PartUseCounter::Part::other;
}

}  // namespace

void TrainingJob::hear_parts() {
  if (planted_.empty() && !use_) {
    training_->trainer().on_part = {};
    return;
  }
  training_->trainer().on_part = [this](StepPart part) {
    if (use_) use_->begin(part_of(part));
    if (part == StepPart::optimizer && !planted_.empty()) planted_.before_update();
  };
}

BatchStream TrainingJob::counted_stream() {
  const auto next = [this] {
    use_->begin(PartUseCounter::Part::data_wait);
    std::optional<Batch> batch = cached_ ? cached_ : epoch_->next();
    use_->begin(PartUseCounter::Part::other);
    return batch;
  };
  return {next, cached_ ? std::numeric_limits<std::int64_t>::max() : epoch_->batches()};
}

std::vector<double> TrainingJob::run_idle(std::int64_t steps) {
  std::vector<double> seconds;
  while (static_cast<std::int64_t>(seconds.size()) < steps) {
    if (stop_signal() != 0) fail(ErrorCode::cancelled, "tune: stopped");
    const bool begins = !epoch_;
    if (begins) epoch_.emplace(training_->loader().epoch(training_->trainer().progress().epoch, 0));
    const std::int64_t begin_ns = monotonic_ns();
    begin_traced_step(static_cast<std::int64_t>(seconds.size()));
    const Span span{step::kStep};
    std::optional<Batch> batch;
    {
      const Span wait{step::kDataWait};
      batch = epoch_->next();
    }
    if (!batch) {
      if (begins) fail(ErrorCode::invalid_argument, "assembly: the training data gives no batch");
      epoch_.reset();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(idle_s_));
    seconds.push_back(seconds_since(begin_ns));
  }
  return seconds;
}

bool TrainingJob::set_idle_compute(double seconds) {
  if ((seconds > 0) != (idle_s_ > 0)) {
    if (seconds > 0) {
      leave_data();
    } else {
      return_to_data();
    }
  }
  idle_s_ = std::max(0.0, seconds);
  return true;
}

void TrainingJob::set_counts_use(bool counts) {
  use_ = counts ? std::make_unique<PartUseCounter>() : nullptr;
  hear_parts();
}

std::optional<PartUses> TrainingJob::part_uses(std::int64_t steps) const {
  return use_ ? use_->uses(steps) : std::nullopt;
}

std::optional<LoadingTotals> TrainingJob::loading_totals() const {
  const LoaderStatistics now = training_->loader().statistics();
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  LoadingTotals totals;
  totals.read_s = seconds(now.read_ns);
  totals.decode_s = seconds(now.decode_ns);
  totals.augment_s = seconds(now.busy_ns - now.read_ns - now.decode_ns);
  totals.collate_s = seconds(now.collate_ns);
  totals.batches = static_cast<double>(now.samples) / static_cast<double>(baseline_.data.batch_size);
  totals.num_workers = static_cast<int>(now.num_workers);
  totals.prefetch_batches = static_cast<int>(now.prefetch_batches);
  return totals;
}

std::optional<ReadTimes> TrainingJob::read_times() {
  constexpr std::int64_t kSamplesMax = 64;
  const Source& source = training_->train_source();
  const std::int64_t count = std::min({baseline_.data.batch_size, kSamplesMax, source.size()});
  if (source.info().in_memory || count <= 0) return std::nullopt;
  const SampleReader reader{source, baseline_.data.limits()};
  Sample sample{source.info().schema.size()};
  const auto seconds_of_all = [&] {
    const std::int64_t begin_ns = monotonic_ns();
    for (std::int64_t i = 0; i < count; ++i) {
      sample.clear();
      reader.read(source.size() - 1 - i, sample);
    }
    return seconds_since(begin_ns);
  };
  try {
    ReadTimes times;
    times.first_s = seconds_of_all();
    times.again_s = seconds_of_all();
    return times;
  } catch (const Error&) {  // What becomes of such a sample, and who tells of it, is the loader's affair.
    return std::nullopt;
  }
}

StepWork TrainingJob::step_work() {
  Trainer& trainer = training_->trainer();
  StepWork work;
  const TensorBatch batch = batch_for_checks(0);
  {
    const KeptLoop kept{trainer};
    const OperatorFlops flops;
    trainer.forward_backward(batch);
    work.flops = flops.counted();
  }
  std::int64_t state = 0, parameters = 0;
  for (const auto& [name, parameter] : trainer.model().parameters) {
    if (!parameter.requires_grad()) continue;  // Frozen: no update.
    parameters += static_cast<std::int64_t>(parameter.nbytes());
    ++work.update_tensors;
  }
  for (const auto& [name, tensor] : trainer.optimizer().state()) state += static_cast<std::int64_t>(tensor.nbytes());
  work.update_bytes = 3 * parameters + 2 * state;  // Gradients are read; parameters and state read and written.
  work.transfer_bytes = training_->loader().statistics().batch_bytes;
  return work;
}

std::optional<MachinePeaks> TrainingJob::peaks() {
  const PeaksKey key{machine_.cpu, machine_.cores_usable, compute_threads(), fmt::format("torch {}", TORCH_VERSION)};
  return machine_peaks(key, {.multiply = matrix_product()});
}

}  // namespace headrace
