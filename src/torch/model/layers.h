// The layers that networks are made of: plain values whose copies share their tensors.
//
// Each is drawn from the default generator as the torch.nn module of its name draws itself: the same ATen calls with
// the same numbers in the same order, hence the same bits after the same seed. A constructor draws at once, so that the
// order of construction is the order of the draws.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

struct Linear {
  at::Tensor weight, bias;  // (outputs, inputs), (outputs).

  Linear(std::int64_t inputs, std::int64_t outputs);
  at::Tensor operator()(const at::Tensor& input) const;  // (N, inputs) -> (N, outputs).
  void register_in(ModelState& state, const std::string& name) const;
  Linear copied() const;  // With tensors of its own, outside every graph.
};

struct ConvolutionShape {
  std::int64_t inputs, outputs;  // Channels.
  std::int64_t kernel = 3, stride = 1, padding = 1;
  bool bias = false;
};

struct Convolution {
  at::Tensor weight, bias;  // (outputs, inputs, kernel, kernel); (outputs), or undefined.
  std::int64_t stride, padding;

  explicit Convolution(const ConvolutionShape& shape);
  at::Tensor operator()(const at::Tensor& input) const;
  void register_in(ModelState& state, const std::string& name) const;
};

struct BatchNorm {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

  explicit BatchNorm(std::int64_t channels);  // Weight 1, bias 0; draws nothing.
  // In training the statistics of the batch, which update the running ones, and Error{invalid_argument} where a channel
  // has a single value; else the running statistics.
  at::Tensor operator()(const at::Tensor& input, bool training) const;
  at::Tensor with_relu_and_pool(const at::Tensor& input, bool training) const;  // As one operator: norm_relu_pool.h.
  void register_in(ModelState& state, const std::string& name) const;
};

// A convolution and the normalisation behind it.
struct NormedConvolution {
  Convolution convolution;
  std::optional<BatchNorm> norm;  // Nothing once it is folded.

  explicit NormedConvolution(const ConvolutionShape& shape) : convolution(shape), norm(shape.outputs) {}
  at::Tensor operator()(const at::Tensor& input, bool training) const;
  void register_in(ModelState& state, const std::string& name, const std::string& norm_name) const;
  // One convolution that computes what both do in evaluation, from the running statistics as they are now: weight times
  // norm.weight / deviation, in double until it is rounded once. Tensors of its own, in the weight's layout, outside
  // every graph.
  NormedConvolution folded() const;
};

// (N, C, H, W) -> (N, C): the mean of each image's channel.
at::Tensor mean_of_images(const at::Tensor& images);

}  // namespace headrace
