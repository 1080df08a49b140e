// Training steps of one batch, and of several small batches in one update, under the names of the Python package
// performance_optimization.
#pragma once

#include <headrace/facade/training_config.h>
#include <headrace/optimizer.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

#include <cstdint>

namespace headrace::facade {

// How many batches of `config.batch_size` one update takes: as many as fit into 64 samples, and at least one.
// Error{invalid_argument}: the batch size is missing or below 1.
std::int64_t setup_gradient_accumulation(const TrainingConfig& config);
// Samples in one update with that many batches: 64 where the batch size divides that; 48 for batches of 24, 128 for one
// of 128.
std::int64_t effective_batch_size(const TrainingConfig& config);

// One update from one batch, in the model's own precision: releases the gradients, then forward, backward and the
// update, each group at its own learning rate. Returns the loss, which waits for the device.
double training_step_standard(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer);

struct AccumulationStep {
  std::int64_t accumulation_steps = 1;  // Batches in one update: a window.
  std::int64_t step = 0;                // The batch's number in its epoch, from 0.
  bool last_of_window = false;          // It ends its window whatever its number is, as the last one of an epoch must.
};

// Forward and backward of one batch, and where step + 1 is a multiple of `accumulation_steps`, or with
// `last_of_window`, the update, each group at its own learning rate; then the gradients are released. The loss is
// divided by `accumulation_steps` before backward, and returned so divided, which waits for the device. The gradients
// of a window that was cut short are scaled to the mean of the batches that it has. Error{invalid_argument}: fewer than
// one batch in a window, or a step below 0.
double training_step_with_accumulation(const Forward& forward, const TensorBatch& batch, Optimizer& optimizer,
                                       const AccumulationStep& window);

}  // namespace headrace::facade
