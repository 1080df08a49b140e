// Parts of a model that do not train.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <string>
#include <vector>

namespace headrace {

// Parameters that a pattern of core/base/parameter_pattern.h names require no gradients from now on. No pattern: does
// nothing. Error{invalid_argument}: a pattern that names none, with the nearest name; or nothing is left to train.
// Changes nothing then.
void freeze(const ModelState& model, const std::vector<std::string>& patterns);

// num_batches_tracked of those batch normalisations whose running statistics move in training: the weight or bias
// beside it requires gradients.
std::vector<at::Tensor> moving_batch_counts(const ModelState& model);

// "12 of 62 parameters (149824 of 11181642 numbers) get no gradients and no updates; 5 batch norms keep their
// running statistics": of a model where some are frozen.
std::string frozen_text(const ModelState& model);

}  // namespace headrace
