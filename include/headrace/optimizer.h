// AdamW and SGD with exchangeable implementations over one state, so that the tuner can switch in mid-run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/train_options.h"

namespace headrace {

// What one step works on, index by index: the parameters that have a gradient, and their state, kind by kind.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> state;
};

// The arithmetic of torch.optim.AdamW (decoupled weight decay, Loshchilov and Hutter, ICLR 2019) or of torch.optim.SGD
// (momentum, Nesterov's too, weight decay added to the gradient; dampening 0). State a parameter: AdamW exp_avg and
// exp_avg_sq in the parameter's layout and a step count; SGD with momentum momentum_buffer, zeros before the first
// step, which then leaves the gradient in it as PyTorch does; SGD without momentum none. Not thread-safe. Tensors are
// shared, not copied.
class Optimizer {
 public:
  Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options);

  // Updates every parameter that has a gradient, at learning rate `rate`. Same result as PyTorch's with foreach=False
  // (plain), foreach=True (foreach), fused=True (fused), within 1e-6 on the same gradients. Parameters are float32 on
  // the CPU.
  void step(double rate);
  void zero_gradients();  // Releases the gradients (set to none).

  void set_implementation(OptimizerImplementation implementation);
  // Live: the next step uses them. The name must stay as it is.
  void set_options(const OptimizerOptions& options);
  const OptimizerOptions& options() const { return options_; }
  // "conv1.weight/exp_avg" -> tensor, in a fixed order; shared, for checkpoints, snapshots and layout changes.
  std::vector<std::pair<std::string, at::Tensor>> state();
  std::int64_t state_bytes() const;
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }

 private:
  void add_missing_state();  // Momentum that is switched on later finds its buffers; switched off, they stay.

  OptimizerOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<std::string> state_names_;        // "exp_avg", ...
  std::vector<std::vector<at::Tensor>> state_;  // Kind by kind, as the names; each as long as parameters_.
  UpdateLists lists_;                           // Kept between steps for its memory.
};

}  // namespace headrace
