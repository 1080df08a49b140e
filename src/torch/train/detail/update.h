// The arithmetic of each optimizer, one source each; detail/update_walk.h has that of `fused` for those but SGD.
#pragma once

#include <headrace/optimizer.h>

namespace headrace {

// What zeros an optimizer of these options begins with, for each parameter.
struct StateKind {
  const char* name;  // "exp_avg": the last part of a state's name.
  bool scalar;       // A float32 scalar; else a tensor in the parameter's layout.
};
std::vector<StateKind> adam_state(const OptimizerOptions& options);  // AdamW's too.
std::vector<StateKind> sgd_state(const OptimizerOptions& options);
std::vector<StateKind> rmsprop_state(const OptimizerOptions& options);

// One update at learning rate `lr`; `lists.state` holds the kinds above, in their order. Without gradient recording.
// Gradients are read; the lists may come back with others in their place. Adam and RMSprop make what `fused` leaves to
// them, tensors that the walk does not take, as `foreach` does.
void update_adam(UpdateLists& lists, const OptimizerOptions& options, double lr);
void update_sgd(UpdateLists& lists, const OptimizerOptions& options, double lr);
void update_rmsprop(UpdateLists& lists, const OptimizerOptions& options, double lr);

// The same of AdamW, Adam and SGD without dampening on any device, by LibTorch's fused operators, which read nothing on
// the host. `lr`: a float32 scalar there. `found_inf`: a float32 scalar there, 1 leaves everything as it is; undefined:
// 0.
void update_by_operators(UpdateLists& lists, const OptimizerOptions& options, const at::Tensor& lr,
                         const at::Tensor& found_inf);

// average += weight * (parameter - average), place by place; `weight`: a float32 scalar where they lie.
void move_averages(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& parameters,
                   const at::Tensor& weight);

// The step count lives in a float tensor on the CPU, as PyTorch's; an operator to add 1 costs more than the addition.
// Returns the new count.
float count_step(const at::Tensor& step);

// Raises the version of a tensor that a kernel of ours writes to, as operators do: autograd then refuses to go back
// through numbers that are no longer there.
void count_write(const at::Tensor& tensor);

// Whether elements lie at the same offsets; dimensions of one element may have any stride. Equal shapes are assumed.
bool same_layout(const at::Tensor& a, const at::Tensor& b);

}  // namespace headrace
