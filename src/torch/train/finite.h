// Whether tensors hold NaN or infinity.
#pragma once

#include <ATen/core/Tensor.h>

namespace headrace {

// Whole numbers and tensors that are not defined are finite. Cost: for dense float32 on the CPU one pass, from 131,072
// elements on by the compute threads; elsewhere the operators isfinite and all, and one read of the device.
bool is_finite(const at::Tensor& tensor);

// Of a tensor that is not finite: nan if there is one, else inf or -inf, whichever comes first.
double value_not_finite(const at::Tensor& tensor);

}  // namespace headrace
