#include "core/base/build_info.h"

// HEADRACE_VERSION, HEADRACE_COMMIT and HEADRACE_PRESET come from cmake/build_info.cmake, for this file alone.
#define HEADRACE_TEXT_OF(value) #value
#define HEADRACE_TEXT(value) HEADRACE_TEXT_OF(value)

namespace headrace {

const BuildInfo& build_info() noexcept {
  static constexpr BuildInfo info {
    .version = HEADRACE_VERSION, .commit = HEADRACE_COMMIT,
#if defined(__clang__)
    .compiler = "clang++ " HEADRACE_TEXT(__clang_major__) "." HEADRACE_TEXT(__clang_minor__) "." HEADRACE_TEXT(
        __clang_patchlevel__),
#else
    .compiler = "g++ " HEADRACE_TEXT(__GNUC__) "." HEADRACE_TEXT(__GNUC_MINOR__) "." HEADRACE_TEXT(__GNUC_PATCHLEVEL__),
#endif
    .preset = HEADRACE_PRESET,
  };
  return info;
}

}  // namespace headrace
