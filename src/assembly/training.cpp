#include "assembly/training.h"

#include <ATen/Context.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <utility>

#include "exec/cores.h"
#include "hardware/allocator.h"
#include "hardware/wait_policy.h"
#include "image/decode.h"
#include "tensor/compute.h"

namespace headrace {

namespace {

// Mean over the samples that count; 0 where none does.
at::Tensor masked_loss(const at::Tensor& logits, const TensorBatch& batch) {
  const at::Tensor each = at::cross_entropy_loss(logits, batch.labels, /*weight=*/{}, at::Reduction::None);
  return each.mul(batch.mask).sum().div(static_cast<double>(std::max<std::int64_t>(batch.counted(), 1)));
}

Output classification(at::Tensor logits, const TensorBatch& batch) {
  at::Tensor loss = batch.mask.defined() ? masked_loss(logits, batch) : at::cross_entropy_loss(logits, batch.labels);
  return Output{std::move(loss), {{"logits", std::move(logits)}}};
}

}  // namespace

Forward classification_forward(Network& network) {
  return [&network](const TensorBatch& batch) { return classification(network.forward(batch.images), batch); };
}

Training::Training(const Recipe& recipe, const Machine& machine) : recipe_(recipe), machine_(machine) {
  apply_compute(recipe_.compute);
  at::globalContext().setDeterministicAlgorithms(recipe_.train.deterministic, /*warn_only=*/false);
  train_source_ = open_source(recipe_.data.source, Split::train, recipe_.data.limits());
  const std::shared_ptr<const Source> test_source =
      open_source(recipe_.data.source, Split::test, recipe_.data.limits());
  if (train_source_->classes() > recipe_.model.classes || test_source->classes() > recipe_.model.classes) {
    fail(ErrorCode::invalid_argument, "model: model.classes is {}, the data has {} classes", recipe_.model.classes,
         std::max(train_source_->classes(), test_source->classes()));
  }
  remarks_ = train_source_->remarks();
  for (const std::string& remark : test_source->remarks()) remarks_.push_back(remark);
  const auto seed = static_cast<std::uint64_t>(recipe_.seed);
  at::manual_seed(seed);
  loader_ = std::make_unique<Loader>(train_source_, recipe_.data, seed, /*training=*/true);
  test_loader_ = std::make_unique<Loader>(test_source, recipe_.data, seed, /*training=*/false);
  network_ = make_network(recipe_.model, loader_->channels(), loader_->height(), loader_->width());

  ModelState state = network_->state();
  Optimizer optimizer{state.parameters, recipe_.optimizer};
  trainer_ =
      std::make_unique<Trainer>(std::move(state), std::move(optimizer), classification_forward(*network_),
                                recipe_.train, recipe_.schedule, check_run_length(recipe_, train_source_->size()));
  trainer_->set_memory_format(recipe_.model.memory_format);
  note_applied_index();
}

// Where there can be none, nobody asked for one but the default.
void Training::note_applied_index() {
  if (!train_source_->index_file().empty() || recipe_.data.index == IndexUse::build) {
    applied_.push_back(loader_->applied_index());
  }
}

void Training::apply_compute(const ComputeOptions& compute) {
  applied_.clear();
  const CoreSplit split = split_cores(machine_.cores_usable, compute.threads, recipe_.data.threads);
  applied_.push_back(apply_compute_threads(split.compute));
  applied_.push_back(apply_allocator(compute.allocator));
  applied_.push_back(wait_policy_in_force(compute.wait_policy));
}

void Training::apply_live(const Recipe& next) {
  recipe_ = next;
  apply_compute(next.compute);
  loader_->set_threads(next.data.threads);
  loader_->set_prefetch_batches(next.data.prefetch_batches);
  test_loader_->set_threads(next.data.threads);
  test_loader_->set_prefetch_batches(next.data.prefetch_batches);
  loader_->set_cache(next.data.cache, /*keep=*/true);
  test_loader_->set_cache(next.data.cache, /*keep=*/true);
  network_->set_fusion(next.model.fusion);
  trainer_->set_memory_format(next.model.memory_format);
  trainer_->optimizer().set_implementation(next.optimizer.implementation);
  trainer_->set_precision(next.train.precision);
  note_applied_index();
}

Forward Training::frozen_forward() const {
  return
      [frozen = network_->frozen()](const TensorBatch& batch) { return classification(frozen(batch.images), batch); };
}

double Training::cache_share() const {
  if (train_source_->height() > 0) return 0;
  constexpr std::int64_t kLookedAt = 64;
  image::Decoder decoder;
  std::vector<std::uint8_t> buffer;
  std::int64_t bytes = 0, pictures = 0;
  const std::int64_t size = train_source_->size(), looked_at = std::min(size, kLookedAt);
  for (std::int64_t i = 0; i < looked_at; ++i) {
    try {
      const Sample sample = train_source_->read(i * size / looked_at, buffer);
      const image::PictureInfo picture = decoder.open(sample.bytes, train_source_->channels(), recipe_.data.max_pixels);
      bytes += std::int64_t{picture.height} * picture.width * picture.channels;
      ++pictures;
    } catch (const Error&) {  // data.on_corrupt deals with it when its turn comes; it takes no room.
      continue;
    }
  }
  if (bytes == 0) return 0;
  const double wanted = static_cast<double>(bytes) / static_cast<double>(pictures) * static_cast<double>(size);
  return std::min(1.0, static_cast<double>(loader_->cache_bytes_max()) / wanted);
}

void Training::redraw(std::uint64_t seed) {
  at::manual_seed(seed);
  const std::unique_ptr<Network> fresh =
      make_network(recipe_.model, loader_->channels(), loader_->height(), loader_->width());
  const at::NoGradGuard no_grad;
  const ModelState source = fresh->state();
  ModelState& target = trainer_->model();
  for (std::size_t i = 0; i < source.parameters.size(); ++i)
    target.parameters[i].second.copy_(source.parameters[i].second);
  for (std::size_t i = 0; i < source.buffers.size(); ++i) target.buffers[i].second.copy_(source.buffers[i].second);
  for (auto& [name, tensor] : trainer_->optimizer().state()) tensor.zero_();
}

}  // namespace headrace
