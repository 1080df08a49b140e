// AdamW and SGD with exchangeable implementations over one state, so that the tuner can switch in mid-run.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/options/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// What one step works on, index by index: the parameters that have a gradient, and their state, kind by kind.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> state;
};

// Parameters that are updated with the same options, as one of torch.optim's param_groups.
struct ParameterGroup {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  OptimizerOptions options;
  double lr_mult = 1.0;  // Multiplies the scheduled rate: every schedule keeps the ratio of two groups' rates.
};

// The arithmetic of torch.optim.AdamW (decoupled weight decay, Loshchilov and Hutter, ICLR 2019) or of torch.optim.SGD
// (momentum, Nesterov's too, weight decay added to the gradient; dampening 0). State a parameter: AdamW exp_avg and
// exp_avg_sq in the parameter's layout and a step count; SGD with momentum momentum_buffer, zeros before the first
// step, which then leaves the gradient in it as PyTorch does; SGD without momentum none. Not thread-safe. Tensors are
// shared, not copied.
class Optimizer {
 public:
  Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options);
  // At least one group; all have options of one name. Error{invalid_argument}: they have not.
  explicit Optimizer(std::vector<ParameterGroup> groups);

  // Updates every parameter that has a gradient, at the learning rate that `scheduled` makes of its group's lr, times
  // the group's lr_mult. Same result as PyTorch's with foreach=False (for_loop), foreach=True (foreach), fused=True
  // (fused), within 1e-6 on the same gradients. Parameters are float32 on the CPU.
  void step(const std::function<double(double)>& scheduled);
  void step(double lr);   // All at this learning rate, times their group's lr_mult.
  void zero_gradients();  // Releases the gradients (set to none).

  void set_implementation(OptimizerImplementation implementation);  // Of every group.
  // Live: the next step uses them. The name must stay as it is.
  void set_options(const OptimizerOptions& options, std::size_t group = 0);
  const OptimizerOptions& options(std::size_t group = 0) const { return groups_[group].options; }
  double lr_mult(std::size_t group = 0) const { return groups_[group].lr_mult; }
  std::size_t groups() const { return groups_.size(); }
  // "conv1.weight/exp_avg" -> tensor, in a fixed order; shared, for checkpoints, snapshots and layout changes.
  std::vector<std::pair<std::string, at::Tensor>> state();
  std::int64_t state_bytes() const;
  // The same of one parameter, by its place in parameters(): "exp_avg" -> tensor.
  std::vector<std::pair<std::string, at::Tensor>> state_of(std::size_t parameter) const;
  // Puts a tensor of the caller's in the place of one state: it is read and updated from now on. One that does not lie
  // in memory as its parameter is laid so, the tensor itself staying the same object. Error{invalid_argument}: no such
  // state, or another shape or type than that has.
  void share_state(std::size_t parameter, const std::string& kind, const at::Tensor& tensor);
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }

 private:
  struct Group {
    OptimizerOptions options;
    double lr_mult = 1.0;
    std::size_t begin = 0, end = 0;              // Of parameters_.
    std::vector<std::string> state_names;        // "exp_avg", ...
    std::vector<std::vector<at::Tensor>> state;  // Kind by kind, as the names; each as long as the group.
  };
  void add_missing_state(
      Group& group);  // Momentum that is switched on later finds its buffers; switched off, they stay.
  void step_group(const Group& group, double lr);
  std::size_t group_of(std::size_t parameter) const;

  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<Group> groups_;
  UpdateLists lists_;  // Kept between steps for its memory.
};

}  // namespace headrace
