#include "engine/assembly/online_call.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "engine/assembly/kept_loop.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

constexpr double kSmallTensor = 1e-3;  // A tensor with less of the gradients' norm holds rounding noise.

// Gives parameters these gradients, in the parameters' own layout.
void give_gradients(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor& parameter = parameters[i].second;
    parameter.mutable_grad() = at::empty_like(parameter.detach()).copy_(gradients[i]);
  }
}

}  // namespace

void OnlineCall::begin() {
  if (!batch_) return;
  generator_ = generator_state();
  buffers_.clear();
  for (const auto& [name, tensor] : trainer_.model().buffers) buffers_.push_back(tensor.detach().clone());
}

void OnlineCall::drop() {
  batch_.reset();
  generator_.reset();
  buffers_.clear();
}

CallResult OnlineCall::make_again() {
  HEADRACE_CHECK(is_kept(), "no call is kept");
  put_values(trainer_.model().buffers, buffers_);
  set_generator_state(generator_);
  const TensorBatch batch = trainer_.transfer(*batch_);
  const std::int64_t begin_ns = monotonic_ns();
  const Output output = trainer_.forward_backward(batch);
  CallResult result;
  result.seconds = seconds_since(begin_ns);
  planted_.spoil_gradients();
  result.gradients = take_gradients(trainer_.model().parameters);
  result.outputs.push_back(output.loss.detach());
  for (const auto& [name, tensor] : output.named) result.outputs.push_back(tensor.detach());
  return result;
}

SquareSums gradient_squares(const std::vector<at::Tensor>& reference, const std::vector<at::Tensor>& candidate) {
  SquareSums sums;
  for (std::size_t i = 0; i < reference.size(); ++i) sums += squares(reference[i], candidate[i]);
  return sums;
}

bool all_finite(const std::vector<at::Tensor>& gradients) {
  return std::isfinite(gradient_squares(gradients, gradients).reference);
}

ReplayDistance distance_of(const NamedTensors& parameters, const CallResult& reference, const CallResult& candidate) {
  if (!std::equal(reference.outputs.begin(), reference.outputs.end(), candidate.outputs.begin(),
                  candidate.outputs.end(),
                  [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); })) {
    fail(ErrorCode::invalid_argument, "assembly: under the change the network returns tensors of other shapes");
  }
  std::vector<SquareSums> tensors;
  SquareSums gradients, outputs;
  ReplayDistance distance;
  distance.bit_equal = true;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back(squares(reference.gradients[i], candidate.gradients[i]));
    gradients += tensors.back();
    distance.bit_equal = distance.bit_equal && same_bits(reference.gradients[i], candidate.gradients[i]);
  }
  for (std::size_t i = 0; i < reference.outputs.size(); ++i) {
    outputs += squares(reference.outputs[i], candidate.outputs[i]);
    distance.bit_equal = distance.bit_equal && same_bits(reference.outputs[i], candidate.outputs[i]);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].reference < kSmallTensor * kSmallTensor * gradients.reference) continue;
    const double value = tensors[i].relative_l2();
    if (value <= distance.worst_tensor) continue;
    distance.worst_tensor = value;
    distance.worst_name = parameters[i].first;
  }
  distance.relative_l2 = gradients.relative_l2();
  distance.cosine = gradients.cosine();
  distance.output_difference = outputs.relative_l2();
  distance.finite = std::isfinite(gradients.candidate) && std::isfinite(outputs.candidate);
  distance.bit_equal = distance.bit_equal && distance.finite;
  distance.seconds = candidate.seconds;
  return distance;
}

NamedTensors updated_by(Trainer& trainer, const std::vector<at::Tensor>& gradients) {
  const NamedTensors& parameters = trainer.model().parameters;
  NamedTensors tensors = parameters;
  const NamedTensors state = trainer.optimizer().state();
  tensors.insert(tensors.end(), state.begin(), state.end());
  const KeptValues kept{tensors};
  give_gradients(parameters, gradients);
  trainer.optimizer().step(trainer.learning_rate());
  take_gradients(parameters);
  return copies_of(tensors);
}

}  // namespace headrace
