// The state of a training loop, compared: what every Job over tensors needs.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/tune.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch/tensor/kept_values.h"

namespace headrace {

// All elements in row-major order, whatever the strides.
std::vector<float> float_values(const at::Tensor& tensor);
// One hash over the bytes of all of them, in row-major order.
std::uint64_t hash_of(const NamedTensors& tensors);

// The gradients that the parameters have now; those without one are left out.
std::vector<Fingerprint::Gradient> gradients_of(const NamedTensors& parameters);
// These gradients in float64.
std::vector<ExactFingerprint::Gradient> exact_gradients(const NamedTensors& gradients);
// Gives parameters these gradients, which are in their order, in the parameters' own layout.
void set_gradients(const NamedTensors& parameters, const std::vector<Fingerprint::Gradient>& gradients);

// Copies of the tensors, for a comparison later.
NamedTensors copies_of(const NamedTensors& tensors);

// Sums of squares of a reference's numbers, of a candidate's and of their differences, in float64: those of several
// tensors add up.
struct SquareSums {
  double reference = 0, candidate = 0, difference = 0;

  SquareSums& operator+=(const SquareSums& other) noexcept;
  // Of the difference to the reference; infinity where the reference alone is 0, or a number is not finite.
  double relative_l2() const noexcept;
  // Of the difference to the larger of the two, so that it is the same both ways.
  double distance() const noexcept;
  // Between the two; NaN where a number is not finite, 0 where one of them is 0 and the other is not.
  double cosine() const noexcept;
};

// Of two tensors with as many elements; one that is not defined counts as zeros.
SquareSums squares(const at::Tensor& reference, const at::Tensor& candidate);
// Every bit, in row-major order. Of tensors that are not defined: whether neither is.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

// The largest relative L2 difference of two states with the same names. What follows the last '/' of a name is one kind
// of optimizer state ("conv1.weight/exp_avg"), and the tensors of a kind are one vector; those without '/' are the
// model's, and one more. Infinity where one state has a kind that the other lacks.
double state_difference(const NamedTensors& a, const NamedTensors& b);

}  // namespace headrace
