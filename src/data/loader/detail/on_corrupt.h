// Which failures data.on_corrupt assigns with.
#pragma once

#include <headrace/error.h>

namespace headrace::detail {

// What lies in the sample's bytes, so that whoever reads them finds the same.
inline bool is_of_its_bytes(ErrorCode code) {
  return code == ErrorCode::corrupt_data || code == ErrorCode::unsupported;
}

// What lies in the sample itself or its file; another sample may be whole.
inline bool is_of_the_sample(ErrorCode code) {
  return is_of_its_bytes(code) || code == ErrorCode::io || code == ErrorCode::not_found;
}

}  // namespace headrace::detail
