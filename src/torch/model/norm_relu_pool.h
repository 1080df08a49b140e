// Batch normalisation, ReLU and 2x2 max pooling as one operator for the CPU.
//
// Each of PyTorch's three operators passes over the images on its own. This one reads them twice forward and twice
// backward and writes them once, as the gradient; the output is a quarter. Its backward needs the input and 2 numbers a
// channel: no mask, no indices, no output.
#pragma once

#include <ATen/core/Tensor.h>

namespace headrace {

// Of a batch normalisation, float32, a value a channel.
struct NormTensors {
  at::Tensor weight, bias, running_mean, running_var;
};

struct NormReluPool {
  bool training = true;  // Statistics of the batch, which update the running ones; else the running ones.
  bool pool = true;      // 2x2, stride 2; an odd last row or column is dropped.
  double momentum = 0.1;
  double epsilon = 1e-5;
};

// max_pool2d(relu(batch_norm(input)), 2) of float32 or bfloat16 images (N, C, H, W), in the input's type and layout.
// Gradients for input, weight and bias; no second derivative. Statistics are summed in double above runs of 64 floats,
// and neither they nor anything else depends on the number of threads. Nothing between the three is rounded to
// bfloat16.
// Error{invalid_argument} for other shapes and types, an empty batch, an image below 2x2 where it is to be pooled, or
// a single value a channel in training; Error{unsupported} away from the CPU, and when a second derivative is asked.
at::Tensor norm_relu_pool(const at::Tensor& input, const NormTensors& norm, const NormReluPool& settings);

}  // namespace headrace
