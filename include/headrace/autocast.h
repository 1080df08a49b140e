// Mixed precision for a scope, as torch.autocast: operators that gain by it compute in bfloat16 or float16, those that
// need the range in float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace headrace {

// In force for the thread from here to the end of the scope, also in Python code that runs within; what was comes back
// then, also by exception. Scopes nest: one that is not `enabled` switches autocast off within another. Copies of
// weights in the reduced type are kept to the end of the outermost: it does not see an update within it. `device` is
// that of the tensors: at::kCPU or at::kCUDA, on a machine without CUDA without effect. Error{invalid_argument}:
// another device, or a `dtype` that is neither at::kBFloat16 nor at::kHalf.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType was_dtype_;
};

}  // namespace headrace
