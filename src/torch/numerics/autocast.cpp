#include "torch/numerics/autocast.h"

#include <ATen/autocast_mode.h>

namespace headrace {

AutocastBf16::AutocastBf16(bool enabled) : active_(enabled) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(at::kCPU);
  was_type_ = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
}

AutocastBf16::~AutocastBf16() {
  if (!active_) return;
  // The cache holds bfloat16 copies of the weights; the outermost scope drops them, or an update would not be seen.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, was_type_);
}

}  // namespace headrace
