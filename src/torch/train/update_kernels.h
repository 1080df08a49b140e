// Updates of optimizers over arrays of floats, with everything that is done beside them in one walk through memory;
// once per instruction set.
//
// Kernels allocate nothing and start no thread. Those of the plain set are the specification. Where the machine has
// fused multiply-adds, they round as ATen's kernels do, so that the bits are the same.
#pragma once

#include <cstdint>

namespace headrace::update_kernels {

// Element i of each array belongs to element i of the others.
struct Arrays {
  float* parameter;
  float* gradient;  // Written to with zero_gradient alone.
  float* state[3];  // As the kernel says.
  float* average;   // nullptr: none.
  // From here on adam() rounds as ATen does where elements fill none of its vectors: the running square is another
  // fused multiply-add, and a NaN in it does not reach max_exp_avg_sq.
  std::int64_t vectors_end;
};

struct Step {
  float gradient_factor = 1;  // Comes first; -1 in it goes up the gradient.
  float weight_decay = 0;     // Times the parameter, added to the gradient.
  float shrink = 1;           // Multiplies the parameter.
  float mean_weight = 0;      // What the gradient has of its running mean.
  float square_decay = 0;     // What its running square keeps,
  float square_weight = 0;    // and what the new square has of it.
  float correction = 1;       // Divides the square's root.
  float eps = 0;
  float momentum = 0;
  float step_size = 0;       // Negative: added to the parameter.
  float average_weight = 0;  // What the new parameter has of its average.
  bool zero_gradient = false;
};

struct Kernels {
  // State: exp_avg, exp_avg_sq, max_exp_avg_sq or nullptr.
  void (*adam)(const Arrays&, const Step&, std::int64_t begin, std::int64_t end) noexcept;
  // State: square_avg, momentum_buffer or nullptr, grad_avg or nullptr.
  void (*rmsprop)(const Arrays&, const Step&, std::int64_t begin, std::int64_t end) noexcept;
};

// Of the best instruction set that this machine has.
const Kernels& kernels() noexcept;

}  // namespace headrace::update_kernels
