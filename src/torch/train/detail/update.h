// The arithmetic of each optimizer, one source each.
#pragma once

#include <headrace/optimizer.h>

namespace headrace {

// What zeros an optimizer of these options begins with, for each parameter.
struct StateKind {
  const char* name;  // "exp_avg": the last part of a state's name.
  bool scalar;       // A float32 scalar; else a tensor in the parameter's layout.
};
std::vector<StateKind> adamw_state(const OptimizerOptions& options);
std::vector<StateKind> sgd_state(const OptimizerOptions& options);

// One update at learning rate `lr`; `lists.state` holds the kinds above, in their order. Without gradient recording.
// Gradients are read; the lists may come back with others in their place.
void update_adamw(UpdateLists& lists, const OptimizerOptions& options, double lr);
void update_sgd(UpdateLists& lists, const OptimizerOptions& options, double lr);

// The fused kernels walk parameter, gradient and state by address: puts a copy that lies as its parameter in the place
// of each gradient that does not.
void lay_gradients_like_parameters(UpdateLists& lists);

}  // namespace headrace
