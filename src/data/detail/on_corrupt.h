// Which failures data.on_corrupt deals with.
#pragma once

#include <headrace/error.h>

namespace headrace::detail {

// What lies in the sample itself or its file; another sample may be whole.
inline bool is_of_the_sample(ErrorCode code) {
  return code == ErrorCode::corrupt_data || code == ErrorCode::io || code == ErrorCode::not_found ||
         code == ErrorCode::unsupported;
}

}  // namespace headrace::detail
