// The loss of logits by its name, as recipes have it.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/options/loss.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

namespace headrace {

// Output{loss, {"logits"}} of logits (N, classes) and the batch's labels: a class a sample, int64 (N), or a target for
// each logit, (N, classes) of any dtype, which is a share of the class (cross_entropy, soft targets), whether the
// sample has it (bce, several labels as multi-hot) or a number (mse, regression; of one logit (N), too). The loss is
// the mean over the samples that count, with class_weights that weighted by those of their labels, which Output::weight
// sums up, or, of soft targets, as PyTorch has it, each class's term times its weight and the mean that of the samples;
// 0 where nothing counts. class_weights: none, or one a class. Waits for a device only with class_weights and labels
// that lie there. Error{invalid_argument}: labels of another dtype or shape.
Output classification(at::Tensor logits, const TensorBatch& batch, const LossOptions& options);

}  // namespace headrace
