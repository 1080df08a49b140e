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
#include <utility>

namespace headrace {

// With memory of its own, in the same layout, outside every graph.
at::Tensor copy_of(const at::Tensor& tensor);

struct Linear {
  at::Tensor weight, bias;  // (outputs, inputs), (outputs).

  Linear(std::int64_t inputs, std::int64_t outputs);
  at::Tensor operator()(const at::Tensor& input) const;  // (..., inputs) -> (..., outputs).
  void register_in(ModelState& state, const std::string& name) const;
  Linear copied() const;  // With tensors of its own, outside every graph.
};

struct ConvolutionShape {
  std::int64_t inputs, outputs;  // Channels.
  std::int64_t kernel = 3, stride = 1, padding = 1, groups = 1;
  bool bias = false;
};

struct Convolution {
  at::Tensor weight, bias;  // (outputs, inputs / groups, kernel, kernel); (outputs), or undefined.
  std::int64_t stride, padding, groups;

  explicit Convolution(const ConvolutionShape& shape);
  at::Tensor operator()(const at::Tensor& input) const;
  void register_in(ModelState& state, const std::string& name) const;
  Convolution copied() const;  // With tensors of its own, outside every graph.
};

struct BatchNormSettings {
  double epsilon = 1e-5;  // Added to the variance.
  double momentum = 0.1;  // Weight of a batch's statistics in the running ones.
};

// What normalises, and what becomes of the running statistics: `training` moves them by the momentum; `averaging` is
// training in which they become the plain mean over all batches since num_batches_tracked was 0, as those of a
// torch.nn.BatchNorm2d with momentum None.
enum class NormMode { evaluation, training, averaging };

struct BatchNorm {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  BatchNormSettings settings;

  explicit BatchNorm(std::int64_t channels, const BatchNormSettings& given = {});  // Weight 1, bias 0; draws nothing.
  // In training the statistics of the batch, which update the running ones, and Error{invalid_argument} where a channel
  // has a single value; else the running statistics. `averaging` reads num_batches_tracked from its device.
  at::Tensor operator()(const at::Tensor& input, NormMode mode) const;
  at::Tensor with_relu_and_pool(const at::Tensor& input, NormMode mode) const;  // As one operator: norm_relu_pool.h.
  // Neither weight nor bias requires gradients: it evaluates in training, too, and its statistics stay.
  bool is_frozen() const;
  BatchNorm with_own_statistics() const;  // Shares weight and bias; what it updates are copies of the running ones.
  void register_in(ModelState& state, const std::string& name) const;
};

// A convolution and the normalisation behind it; normed() of recomputation.h computes them.
struct NormedConvolution {
  Convolution convolution;
  std::optional<BatchNorm> norm;  // Nothing once it is folded.

  explicit NormedConvolution(const ConvolutionShape& shape, const BatchNormSettings& settings = {})
      : convolution(shape), norm(std::in_place, shape.outputs, settings) {}
  void register_in(ModelState& state, const std::string& name, const std::string& norm_name) const;
  // One convolution that computes what both do in evaluation, from the running statistics as they are now: weight times
  // norm.weight / deviation, in double until it is rounded once. Tensors of its own, in the weight's layout, outside
  // every graph.
  NormedConvolution folded() const;
  NormedConvolution with_own_statistics() const;  // As BatchNorm's.
};

// Over the last dimension.
struct LayerNorm {
  at::Tensor weight, bias;  // (size) each.
  double epsilon;

  LayerNorm(std::int64_t size, double epsilon_given);  // Weight 1, bias 0; draws nothing.
  at::Tensor operator()(const at::Tensor& input) const;
  void register_in(ModelState& state, const std::string& name) const;
  LayerNorm copied() const;  // With tensors of its own, outside every graph.
};

// (N, C, H, W) -> (N, C): the mean of each image's channel.
at::Tensor mean_of_images(const at::Tensor& images);

}  // namespace headrace
