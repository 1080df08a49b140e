// Exponential moving averages of a model's weights (EMA).
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Of parameters and buffers, in tensors of its own that begin as copies of the model's and need no gradient. Holds the
// model's tensors, too. Not thread-safe.
class WeightAverage {
 public:
  // `warmup`: the n-th update has the decay min(decay, (1 + n) / (10 + n)); else all have `decay`.
  // Error{invalid_argument}: it is not between 0 and 1; a parameter or buffer, by its name, cannot be written in place,
  // so that no average could ever take its place.
  WeightAverage(const ModelState& model, double decay, bool warmup);

  // The n-th update, from 1: average = decay * average + (1 - decay) * weight where these are floating-point numbers;
  // what else there is, as counters of batches, is copied.
  void update(std::int64_t n);
  // Lays each average in memory as its weight lies, for whoever changed that: an update is slower otherwise. The
  // tensors stay the same objects.
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
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;  // Average and weight.
};

}  // namespace headrace
