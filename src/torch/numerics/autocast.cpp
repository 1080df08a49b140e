#include <ATen/autocast_mode.h>
#include <headrace/autocast.h>

#include "core/base/fail.h"

namespace headrace {
namespace {

at::DeviceType checked(at::DeviceType device, at::ScalarType dtype) {
  if (device != at::kCPU && device != at::kCUDA) {
    fail(ErrorCode::invalid_argument, "numerics: autocast wants device cpu or cuda, found {}",
         c10::DeviceTypeName(device, /*lower_case=*/true));
  }
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    fail(ErrorCode::invalid_argument, "numerics: autocast wants dtype BFloat16 or Half, found {}",
         c10::toString(dtype));
  }
  return device;
}

}  // namespace

Autocast::Autocast(at::DeviceType device, at::ScalarType dtype, bool enabled)
    : device_(checked(device, dtype)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_dtype_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::set_autocast_enabled(device_, enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // The cache holds copies of the weights in the reduced type; the outermost scope drops them, or an update would not
  // be seen.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_dtype_);
}

}  // namespace headrace
