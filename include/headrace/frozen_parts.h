// Parts of a model that do not train.
#pragma once

#include <headrace/model_state.h>

#include <string>
#include <vector>

namespace headrace {

// Parameters that a pattern names require no gradients from now on; their batch normalisations keep their running
// statistics where the model is a Network. A pattern is the name of a parameter, or of a module that it is in: "layer1"
// names "layer1.0.conv1.weight"; * stands for any characters, ? for one. No pattern: does nothing.
// Error{invalid_argument}: a pattern that names none, with the nearest name; or nothing is left to train. Changes
// nothing then.
void freeze(const ModelState& model, const std::vector<std::string>& patterns);

// "12 of 62 parameters (149824 of 11181642 numbers) get no gradients and no updates; 5 batch norms keep their
// running statistics": of a model where some are frozen.
std::string frozen_text(const ModelState& model);

}  // namespace headrace
