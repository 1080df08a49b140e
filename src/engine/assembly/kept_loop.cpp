#include "engine/assembly/kept_loop.h"
#include "torch/train/training_state.h"

namespace headrace {

KeptLoop::KeptLoop(Trainer& trainer)
    : trainer_(trainer),
      window_(trainer.progress().window),
      window_weight_(trainer.progress().window_weight),
      largest_weight_(trainer.progress().largest_weight),
      generator_(generator_state()),
      buffers_(trainer.model().buffers),
      gradients_(take_gradients(trainer.model().parameters)) {}

KeptLoop::~KeptLoop() {
  const NamedTensors& parameters = trainer_.model().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
  set_generator_state(generator_);
  Progress& progress = trainer_.progress();
  progress.window = window_;
  progress.window_weight = window_weight_;
  progress.largest_weight = largest_weight_;
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
