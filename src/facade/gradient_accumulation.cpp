#include <headrace/facade/gradient_accumulation.h>

#include <algorithm>
#include <string>

#include "core/base/fail.h"

namespace headrace::facade {
namespace {

constexpr std::int64_t kTarget = 64;  // Samples in one update.

std::int64_t batch_size_of(const TrainingConfig& config) {
  if (!config.batch_size || *config.batch_size < 1) {
    fail(ErrorCode::invalid_argument, "facade: config.batch_size: wanted a whole number of at least 1, found {}",
         config.batch_size ? std::to_string(*config.batch_size) : "none");
  }
  return *config.batch_size;
}

}  // namespace

std::int64_t setup_gradient_accumulation(const TrainingConfig& config) {
  return std::max<std::int64_t>(kTarget / batch_size_of(config), 1);
}

std::int64_t effective_batch_size(const TrainingConfig& config) {
  return batch_size_of(config) * setup_gradient_accumulation(config);
}

double training_step_standard(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer) {
  optimizer.zero_gradients();
  const at::Tensor loss = forward(batch).loss;
  loss.backward();
  optimizer.step([](double lr) { return lr; });
  return loss.item<double>();
}

double training_step_with_accumulation(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer,
                                       const AccumulationStep& window) {
  if (window.accumulation_steps < 1 || window.step < 0) {
    fail(ErrorCode::invalid_argument,
         "facade: wanted accumulation_steps of at least 1 and a step of at least 0, found {} and {}",
         window.accumulation_steps, window.step);
  }
  const at::Tensor loss = forward(batch).loss.div(window.accumulation_steps);
  loss.backward();
  const std::int64_t batches = window.step % window.accumulation_steps + 1;
  if (window.last_of_window || batches == window.accumulation_steps) {
    if (batches < window.accumulation_steps) {
      const double scale = static_cast<double>(window.accumulation_steps) / static_cast<double>(batches);
      for (const auto& [name, parameter] : optimizer.parameters()) {
        if (parameter.grad().defined()) parameter.grad().mul_(scale);
      }
    }
    optimizer.step([](double lr) { return lr; });
    optimizer.zero_gradients();
  }
  return loss.item<double>();
}

}  // namespace headrace::facade
