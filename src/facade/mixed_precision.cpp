#include <headrace/autocast.h>
#include <headrace/facade/mixed_precision.h>

#include <string>

#include "facade/agreed.h"
#include "torch/device/accelerator.h"

namespace headrace::facade {

MixedPrecision setup_mixed_precision_training(const TrainingConfig& config) {
  const bool requested = agreed<bool>("mixed precision",
                                      {{"enable_mixed_precision", config.enable_mixed_precision},
                                       {"mixed_precision", config.mixed_precision},
                                       {"enable_amp", config.enable_amp}},
                                      true);
  MixedPrecision outcome;
  outcome.report = {.key = "mixed_precision", .requested = requested ? "true" : "false", .applied = "false"};
  if (!requested) return outcome;
  std::string reason;
  outcome.enabled = accelerator_of(at::Device(at::kCUDA, 0), reason) != nullptr;
  if (outcome.enabled) {
    outcome.scaler.emplace();
    outcome.report.applied = "true";
  } else {
    outcome.report.reason = fmt::format("wanted CUDA, found none: {}", reason);
  }
  return outcome;
}

double training_step_with_amp(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer,
                              GradScaler* scaler) {
  const auto at_own_rate = [](double lr) { return lr; };
  const at::DeviceType device = optimizer.parameters().front().second.device().type();
  optimizer.zero_gradients();
  at::Tensor loss;
  {
    const bool is_on = scaler != nullptr && scaler->is_enabled();
    const Autocast autocast(device, device == at::kCUDA ? at::kHalf : at::kBFloat16, is_on);
    loss = forward(batch).loss;
  }
  if (scaler == nullptr) {
    loss.backward();
    optimizer.step(at_own_rate);
  } else {
    scaler->scale(loss).backward();
    scaler->step(optimizer, at_own_rate);
    scaler->update();
  }
  return loss.item<double>();
}

}  // namespace headrace::facade
