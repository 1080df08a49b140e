#include <headrace/autocast.h>
#include <headrace/clip_gradients.h>
#include <headrace/facade/rx_vision_trainer.h>
#include <headrace/loader.h>

#include <cstddef>

#include "facade/agreed.h"
#include "torch/train/memory_layout.h"

namespace headrace::facade {
namespace {

HyperParameters in_force(const HyperParameters& given) {
  const double limit =
      agreed<double>("hparams: clipping",
                     {{"max_grad_norm", given.max_grad_norm}, {"gradient_clip_val", given.gradient_clip_val}}, 1.0);
  if (!(limit > 0)) {
    fail(ErrorCode::invalid_argument, "facade: hparams.max_grad_norm: wanted a number above 0, found {}", limit);
  }
  return {limit, limit};
}

}  // namespace

RxVisionTrainer::RxVisionTrainer(ModelState model, Optimizer optimizer, const HyperParameters& hparams,
                                 std::optional<GradScaler> given_scaler)
    : scaler(std::move(given_scaler)),
      model_(std::move(model)),
      optimizer_(std::move(optimizer)),
      hparams_(in_force(hparams)) {
  if (model_.parameters.empty()) {
    fail(ErrorCode::invalid_argument, "facade: model: wanted one with parameters, found none");
  }
}

RxVisionTrainer::~RxVisionTrainer() = default;

void RxVisionTrainer::configure_training() {
  if (!scaler) scaler.emplace(GradScalerState{}, model_.parameters.front().second.is_cuda());
}

at::Tensor RxVisionTrainer::training_step(const TensorBatch& batch, std::int64_t /*batch_idx*/) {
  configure_once();
  zero_gradients();
  at::Tensor loss;
  {
    const at::DeviceType device = model_.parameters.front().second.device().type();
    const bool is_cuda = device == at::kCUDA;
    const Autocast autocast(device, is_cuda ? at::kHalf : at::kBFloat16, is_cuda);
    loss = compute_loss(batch);
  }
  scaler->scale(loss).backward();
  scaler->unscale_(optimizer_);
  std::vector<at::Tensor> stepped;
  for (const auto& [name, parameter] : optimizer_.parameters()) stepped.push_back(parameter);
  clip_gradients(stepped, {}, {.max_norm = *hparams_.max_grad_norm});
  scaler->step(optimizer_, [](double lr) { return lr; });
  scaler->update();
  return loss.detach();
}

std::vector<double> RxVisionTrainer::fit(const std::vector<TensorBatch>& batches, std::int64_t epochs) {
  std::vector<double> means;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    std::size_t next = 0;
    means.push_back(mean_over(epoch, [&]() -> std::optional<TensorBatch> {
      if (next == batches.size()) return std::nullopt;
      return batches[next++];
    }));
  }
  return means;
}

std::vector<double> RxVisionTrainer::fit(Loader& loader, std::int64_t epochs) {
  std::vector<double> means;
  for (std::int64_t i = 0; i < epochs; ++i) {
    Epoch epoch = loader.epoch(i);
    means.push_back(mean_over(i, [&]() -> std::optional<TensorBatch> {
      const std::optional<Batch> host = epoch.next();
      if (!host) return std::nullopt;
      return tensors_of(*host, MemoryFormat::contiguous);
    }));
  }
  return means;
}

double RxVisionTrainer::mean_over(std::int64_t epoch, const std::function<std::optional<TensorBatch>()>& next_batch) {
  configure_once();
  if (model_.set_training) model_.set_training(true);
  double sum = 0;
  std::int64_t batches = 0;
  while (const std::optional<TensorBatch> batch = next_batch()) {
    zero_gradients();
    sum += training_step(*batch, batches++).item<double>();
  }
  if (batches == 0) fail(ErrorCode::invalid_argument, "facade: fit: wanted a batch in epoch {}, found none", epoch);
  return sum / static_cast<double>(batches);
}

void RxVisionTrainer::configure_once() {
  if (is_configured_) return;
  is_configured_ = true;
  configure_training();
  if (!scaler) scaler.emplace(GradScalerState{}, /*enabled=*/false);
}

void RxVisionTrainer::zero_gradients() {
  for (const auto& [name, parameter] : model_.parameters) parameter.mutable_grad().reset();
  optimizer_.zero_gradients();
}

}  // namespace headrace::facade
