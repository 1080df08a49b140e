// What is looked at more closely in steps of numerical stability: what operators give, and steps that look wrong.
#pragma once

#include <headrace/facade/numerical_stability.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::facade {

// For its life, what the outermost operators of the thread that made it give is measured. Made and ended by one thread;
// one within the life of another measures nothing.
class ActivationWatch {
 public:
  ActivationWatch();
  ~ActivationWatch();
  ActivationWatch(const ActivationWatch&) = delete;
  ActivationWatch& operator=(const ActivationWatch&) = delete;

  std::vector<ActivationStatistics> take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Compares steps with the median of those before.
class SuspiciousSteps {
 public:
  explicit SuspiciousSteps(double factor) : factor_(factor) {}

  // What is wrong with the result of this step, counted from 1, as a sentence without its end; empty: nothing is.
  std::string look(std::int64_t step, const StabilityResult& result);

 private:
  std::string compared(std::string_view name, double value, std::vector<double>& known) const;

  double factor_;
  std::vector<double> losses_, norms_;  // Of the newest steps, the oldest first.
};

}  // namespace headrace::facade
