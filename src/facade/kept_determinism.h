// Whether torch's algorithms are deterministic, as it is outside.
#pragma once

#include <ATen/Context.h>

namespace headrace::facade {

// A Trainer decides whether algorithms are deterministic; afterwards it is again what it was.
class KeptDeterminism {
 public:
  KeptDeterminism() = default;
  ~KeptDeterminism() { at::globalContext().setDeterministicAlgorithms(is_on_, warns_only_); }
  KeptDeterminism(const KeptDeterminism&) = delete;
  KeptDeterminism& operator=(const KeptDeterminism&) = delete;
  bool is_on() const { return is_on_; }

 private:
  bool is_on_ = at::globalContext().deterministicAlgorithms();
  bool warns_only_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

}  // namespace headrace::facade
