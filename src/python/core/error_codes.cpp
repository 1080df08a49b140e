#include "python/core/error_codes.h"

#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

ErrorCode code_named(std::string_view name) noexcept {
  using enum ErrorCode;
  for (const ErrorCode code :
       {invalid_argument, not_found, corrupt_data, io, unsupported, out_of_memory, numerics, cancelled}) {
    if (name == to_string(code)) return code;
  }
  return internal;
}

ErrorCode code_of(nb::handle exception) {
  try {
    return code_named(text_of(imported("headrace._kept_call", "code_of")(exception)));
  } catch (const nb::python_error&) {  // Of its __str__.
    return ErrorCode::internal;
  }
}

}  // namespace headrace::python
