// Examines the results of every operator that runs in a scope: anomaly detection.
#pragma once

#include <headrace/model_state.h>

#include <memory>
#include <string>

namespace headrace {

// An operator whose result was bad.
struct BadResult {
  std::string operation{};  // "aten::sqrt", or in a backward "aten::div in SqrtBackward0". Empty: there was none.
  // In a forward the parameter or buffer that an operator read last before that result, or for it: "fc1.weight". Empty:
  // none was read yet, or the operator is of a backward.
  std::string last_read{};
};

// For its life, operators of the thread that made it, those of a backward on the CPU among them, are examined. Made and
// ended by one thread; one within the life of another examines nothing. Unlike torch::autograd::DetectAnomalyGuard it
// sees the forward, touches no other thread and throws nothing. Each operator waits for its device.
class OperatorWatch {
 public:
  // Knows the parameters and buffers of `model` by their tensors, which stay the same ones meanwhile.
  explicit OperatorWatch(const ModelState& model);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // The first operator that gave NaN, or infinity, of arguments that had none.
  const BadResult& first_nan() const;
  const BadResult& first_infinity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
