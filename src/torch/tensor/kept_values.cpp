#include "torch/tensor/kept_values.h"

#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

NamedTensors weights_of(const ModelState& model) {
  NamedTensors tensors = model.parameters;
  tensors.insert(tensors.end(), model.buffers.begin(), model.buffers.end());
  return tensors;
}

void put_values(const NamedTensors& tensors, const std::vector<at::Tensor>& values) {
  HEADRACE_CHECK(values.size() == tensors.size(), "{} values for {} tensors", values.size(), tensors.size());
  const at::NoGradGuard no_graph;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].second.copy_(values[i]);
}

KeptValues::KeptValues(NamedTensors tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) values_.push_back(tensor.detach().clone());
}

KeptValues::~KeptValues() {
  put_values(tensors_, values_);
}

}  // namespace headrace
