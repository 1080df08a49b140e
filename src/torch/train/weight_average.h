// Exponential moving averages of a model's weights (EMA).
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Of parameters and buffers, in tensors of its own that start as copies of the model's and need no gradient. Shares the
// model's tensors, to read them at each update. Not thread-safe.
class WeightAverage {
 public:
  // `warmup`: the n-th update has the decay min(decay, (1 + n) / (10 + n)); else all have `decay`.
  // Error{invalid_argument}: `decay` is below 0, or not below 1; or a parameter or buffer, which is named, cannot be
  // written in place, so that it could never hold its average.
  WeightAverage(const ModelState& model, double decay, bool warmup);

  // The n-th update, from 1: average = decay * average + (1 - decay) * weight of floating-point tensors; those of
  // other dtypes, such as num_batches_tracked, are copied. Not `all`: without those that averages_of() gave last, which
  // whoever updates the parameters moves on the way.
  void update(std::int64_t n, bool all = true);
  // The same without those that averages_of() gave last, with a float32 scalar on their device in the place of 1 -
  // decay: by operators that can be captured.
  void update_others(const at::Tensor& weight);
  double decay(std::int64_t n) const;  // That of the n-th update.
  // The averages of these parameters, place by place; undefined where there is none that moves.
  std::vector<at::Tensor> averages_of(const NamedTensors& parameters);
  // Gives each average the strides of its weight, after a change of the model's memory format: an update of tensors in
  // different layouts is slower. The tensors stay the same objects.
  void lay_like_weights();

  // Parameters, then buffers, by their names; shared.
  const NamedTensors& tensors() const { return tensors_; }

 private:
  double decay_;
  bool warmup_;
  NamedTensors tensors_;
  NamedTensors weights_;  // The model's, in the order of tensors_.
  // The same tensors as an update takes them: floating-point ones as two lists for one operator.
  std::vector<at::Tensor> moving_averages_, moving_weights_;
  std::vector<at::Tensor> other_averages_, other_weights_;  // Of these, what averages_of() did not give.
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;   // Average and weight.
};

// nullopt where `decay` is 0. Error{invalid_argument}: as the constructor, or no parameter requires gradients, whose
// averages would be the weights.
std::optional<WeightAverage> average_of(const ModelState& model, double decay, bool warmup);

}  // namespace headrace
