// What frozen parameters do to the batch normalisations beside them.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/frozen_parts.h>
#include <headrace/model_state.h>

#include <vector>

namespace headrace {

// num_batches_tracked of those batch normalisations whose running statistics move in training: the weight or bias
// beside it requires gradients.
std::vector<at::Tensor> moving_batch_counts(const ModelState& model);

}  // namespace headrace
