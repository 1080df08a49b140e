// The loss of a recipe's network, by its name.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/options/loss.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

namespace headrace {

// Output{loss, {"logits"}} of logits (N, classes) and the batch's labels, int64 (N). The loss is the mean over the
// samples that count, with class_weights that weighted by those of their labels, which Output::weight sums up; 0 where
// nothing counts. class_weights: none, or one a class.
Output classification(at::Tensor logits, const TensorBatch& batch, const LossOptions& options);

}  // namespace headrace
