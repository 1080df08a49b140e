// Autocast for a scope, as torch.autocast("cpu", dtype) does it; restores what was on exit, also by exception.
#pragma once

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
};

}  // namespace headrace
