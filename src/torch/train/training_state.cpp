#include "torch/train/training_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace headrace {

NamedTensors weights_as(const char* part, const ModelState& model) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : model.parameters) tensors.emplace_back(part + name, tensor);
  for (const auto& [name, tensor] : model.buffers) tensors.emplace_back(part + name, tensor);
  return tensors;
}

NamedTensors training_tensors(const ModelState& model, const NamedTensors& averages, Optimizer& optimizer) {
  NamedTensors tensors = weights_as(kTrained, model);
  for (const auto& [name, tensor] : averages) tensors.emplace_back(kAverages + name, tensor);
  for (const auto& [name, tensor] : optimizer.state()) tensors.emplace_back(kOptimizerState + name, tensor);
  return tensors;
}

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace headrace
