// Values of tensors that are kept and put back.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>

#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Parameters, then buffers; shared.
NamedTensors weights_of(const ModelState& model);

// Puts values, in the order of the tensors and as many, into them; each tensor keeps its own layout.
void put_values(const NamedTensors& tensors, const std::vector<at::Tensor>& values);

// Puts the values of tensors back at the end of its life, whatever was written over them meanwhile.
class KeptValues {
 public:
  explicit KeptValues(NamedTensors tensors);
  ~KeptValues();
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

 private:
  NamedTensors tensors_;
  std::vector<at::Tensor> values_;
};

}  // namespace headrace
