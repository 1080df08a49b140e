// Examines the results of every operator that runs in a scope: anomaly detection.
#pragma once

#include <memory>
#include <string>

namespace headrace {

// For its life, operators of the thread that made it, those of a backward on the CPU among them, are examined. Made and
// ended by one thread; one within the life of another examines nothing. Unlike torch::autograd::DetectAnomalyGuard it
// sees the forward, touches no other thread and throws nothing. Each operator waits for its device.
class OperatorWatch {
 public:
  OperatorWatch();
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // The first operator that gave NaN, or infinity, of arguments that had none: "aten::sqrt", or in a backward
  // "aten::div in SqrtBackward0". Empty: none did.
  const std::string& first_nan() const;
  const std::string& first_infinity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
