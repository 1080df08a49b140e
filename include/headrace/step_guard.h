// Finds and names what is not finite in a training step: loss, gradients, weights, results of operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>
#include <headrace/options/step_guard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

enum class FaultKind { loss, gradient, weight, activation };

// Something that is NaN or infinite.
struct StepFault {
  FaultKind kind = FaultKind::loss;
  double value = 0;  // nan, inf or -inf.
  // Of a gradient or a weight its parameter's or buffer's name in ModelState; of a loss that of a parameter that is not
  // finite itself. Empty: there is none.
  std::string tensor{};
  // "layer1.0.conv1" of "layer1.0.conv1.weight"; empty: the model itself, or no tensor. With an operation of the
  // forward and no tensor that whose parameter or buffer an operator read last before: it made the result, or what has
  // no parameters behind it did.
  std::string module{};
  std::string operation{};  // With detect_anomaly, the first operator whose result was NaN or infinite: "aten::sqrt".
  std::int64_t epoch = 0, batch = 0;

  // "loss is nan in epoch 0, batch 5: conv2.weight is not finite; first so was a result of aten::sqrt", or
  // "loss is nan in epoch 0, batch 5; first so was a result of aten::sqrt, at or after module fc1".
  std::string text() const;
};

// How often what was found and done; Progress has it, and so have checkpoints. An overflow that a loss scale forgives
// is in none of them.
struct GuardCounts {
  std::int64_t losses = 0, gradients = 0, weights = 0, activations = 0;     // Faults by their kind.
  std::int64_t skipped = 0, replaced = 0, lowered_lr = 0, rolled_back = 0;  // What was done about them.
  std::int64_t in_a_row = 0;                                                // Without a good update between them.
  double lr_factor = 1.0;  // What lower_lr has left of the learning rate.

  std::int64_t faults() const { return losses + gradients + weights + activations; }
  bool operator==(const GuardCounts&) const = default;
};

// For a Trainer, or a loop of one's own: check_loss() after the forward, check_gradients() after the backward and with
// a loss scale taken off, check_weights() after the update; decide() says whether training may go on. Not thread-safe.
// Each check reads the device once; tensors that are finite are read at the speed of memory on the CPU.
class StepGuard {
 public:
  StepGuard(ModelState model, StepGuardOptions options);
  ~StepGuard();
  StepGuard(StepGuard&& other) noexcept;
  StepGuard& operator=(StepGuard&& other) = delete;

  // nullopt: finite.
  std::optional<StepFault> check_loss(const at::Tensor& loss);
  // Names the parameter whose gradient went bad first: the last in registration order, as a backward goes from the end
  // of the model to its beginning and carries a NaN along. Of these parameters, or of all.
  std::optional<StepFault> check_gradients();
  std::optional<StepFault> check_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters);
  // Parameters and buffers; names the first in registration order.
  std::optional<StepFault> check_weights();

  // With detect_anomaly the operators of this thread are examined from begin_step() to end_step(), and what they gave
  // is forgotten by the next begin_step(); else these do nothing. A NaN is a fault of its own, also where nothing came
  // of it; an infinity, which masks have on purpose, only explains other faults. check_activations() tells of one.
  void begin_step();
  void end_step();
  std::optional<StepFault> check_activations() const;

  // Counts the fault and keeps it as the last one. Error{numerics} with its text under policy raise; where a limit of
  // the options is passed; and under skip and lower_lr where a weight is not finite, as no later step would be finite.
  void decide(const StepFault& fault, GuardCounts& counts);
  // NaN and infinity in parameters, buffers and gradients become 0.
  void replace();

  const std::optional<StepFault>& last_fault() const;
  const StepGuardOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
