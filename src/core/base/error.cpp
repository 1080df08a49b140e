#include <headrace/error.h>

#include <cstdio>
#include <cstdlib>

namespace headrace {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::corrupt_data:
      return "corrupt_data";
    case ErrorCode::io:
      return "io";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::numerics:
      return "numerics";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

namespace detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) noexcept {
  // stdio and not fmt: nothing on the way to abort() may throw.
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, expression, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace headrace
