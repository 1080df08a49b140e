// AdamW with exchangeable implementations over one state, so that the tuner can switch in mid-run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/train_options.h"

namespace headrace {

// Decoupled weight decay Adam (Loshchilov and Hutter, ICLR 2019), the arithmetic of torch.optim.AdamW. State a
// parameter: exp_avg and exp_avg_sq in the parameter's layout, and a step count. Not thread-safe. Tensors are shared,
// not copied.
class Optimizer {
 public:
  Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options);

  // Updates every parameter that has a gradient, at learning rate `rate`. Same result as torch.optim.AdamW with
  // foreach=False (plain), foreach=True (foreach), fused=True (fused), within 1e-6 on the same gradients. Parameters
  // are float32 on the CPU.
  void step(double rate);
  void zero_gradients();  // Releases the gradients (set to none).

  void set_implementation(OptimizerImplementation implementation);
  // Live: the next step uses them. The name must stay as it is.
  void set_options(const OptimizerOptions& options);
  const OptimizerOptions& options() const { return options_; }
  // "conv1.weight/exp_avg" -> tensor, in a fixed order; shared, for checkpoints, snapshots and layout changes.
  std::vector<std::pair<std::string, at::Tensor>> state();
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }

 private:
  // What one step works on, index by index: the parameters that have a gradient, and their state.
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq, step;
  };
  void step_plain(double rate);
  void step_foreach(double rate);
  void step_fused(double rate);

  OptimizerOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_, step_;  // step_: float32 scalars, as PyTorch keeps them.
  Lists lists_;                                          // Kept between steps for its memory.
};

}  // namespace headrace
