// Throwing Error with a formatted message, and a check for our own mistakes.
#pragma once

#include <fmt/format.h>
#include <headrace/error.h>

#include <string>
#include <utility>

namespace headrace {

// Throws Error with a message formatted by fmt: fail(ErrorCode::io, "base: cannot open {}: {}", path, reason).
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& message) noexcept;
}

// Our own mistake: prints expression, place and message to stderr and aborts, also in release builds.
#define HEADRACE_CHECK(condition, ...) \
  (static_cast<bool>(condition)        \
       ? void(0)                       \
       : ::headrace::detail::check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)))

}  // namespace headrace
