// bfloat16 autocast of CPU operators for a scope, as torch.autocast("cpu") does it; restores what was on exit, also by
// exception.
#pragma once

#include <c10/core/ScalarType.h>

namespace headrace {

class AutocastBf16 {
 public:
  explicit AutocastBf16(bool enabled);  // false: nothing happens.
  ~AutocastBf16();
  AutocastBf16(const AutocastBf16&) = delete;
  AutocastBf16& operator=(const AutocastBf16&) = delete;

 private:
  bool active_;
  bool was_enabled_ = false;
  at::ScalarType was_type_ = at::kFloat;
};

}  // namespace headrace
