// An optimizer from a configuration, with a smaller learning rate for the backbone.
#pragma once

#include <headrace/facade/training_config.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>

namespace headrace::facade {

// AdamW (betas 0.9 and 0.999, eps 1e-8) or SGD (momentum 0.937, Nesterov's), as config.model_config says, over the
// parameters that require gradients, in up to two groups: those whose names contain "backbone" or "stem", at a tenth of
// the learning rate, and the rest. A group without parameters is left out. Error{invalid_argument}: no learning rate, a
// learning rate or weight decay below 0, another optimizer, a base_batch_size below 1 or without a batch size, or no
// parameter that requires gradients.
Optimizer create_optimized_optimizer(const ModelState& model, const TrainingConfig& config);

}  // namespace headrace::facade
