#include "torch/train/training_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace headrace {
namespace {

constexpr const char* kOtherGenerators = "generator/others";

std::string name_of_generator(c10::Device device) {
  return "generator/" + device.str();
}

}  // namespace

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

NamedTensors generator_states(c10::Device device, const OtherGenerators& others) {
  NamedTensors states{{kGenerator, generator_state()}};
  if (!device.is_cpu()) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    states.emplace_back(name_of_generator(device), generator.get_state());
  }
  if (others.state) states.emplace_back(kOtherGenerators, others.state());
  return states;
}

void set_generator_states(const std::map<std::string, at::Tensor>& states, c10::Device device,
                          const OtherGenerators& others) {
  if (const auto found = states.find(kGenerator); found != states.end()) set_generator_state(found->second);
  const auto of_device = device.is_cpu() ? states.end() : states.find(name_of_generator(device));
  if (of_device != states.end()) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    generator.set_state(of_device->second);
  }
  const auto of_others = others.set_state ? states.find(kOtherGenerators) : states.end();
  if (of_others != states.end()) others.set_state(of_others->second);
}

}  // namespace headrace
