#include "engine/assembly/kept_loop.h"

namespace headrace {

KeptLoop::KeptLoop(Trainer& trainer)
    : trainer_(trainer),
      window_(trainer.progress().window),
      generator_(generator_state()),
      buffers_(trainer.model().buffers),
      gradients_(take_gradients(trainer.model().parameters)) {}

KeptLoop::~KeptLoop() {
  const NamedTensors& parameters = trainer_.model().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
  set_generator_state(generator_);
  trainer_.progress().window = window_;
}

std::vector<at::Tensor> take_gradients(const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    gradients.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

}  // namespace headrace
