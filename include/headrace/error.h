// One exception type for a call that cannot do its job, and a check for our own mistakes.
//
// A message is one line, starts with the module, and says what was wanted and what was found:
// "data: train-labels.gz: 59,999 labels, 60,000 images". LibTorch's c10::Error passes through and is translated once,
// at an edge (torch/tensor/translate.h).
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace headrace {

enum class ErrorCode {
  invalid_argument,  // The caller asked for something that makes no sense: a bad option, an unknown name.
  not_found,         // A file, key or sample does not exist.
  corrupt_data,      // Bytes that were read are not what their format promises.
  io,                // The operating system refused: permission, full disk, broken pipe.
  unsupported,       // Known, but not available in this build or on this machine.
  out_of_memory,     // A budget or the machine cannot hold it.
  numerics,          // A loss or gradient is not finite.
  cancelled,         // Stopped from outside (a signal, the destructor of the owner).
  internal,          // Our own mistake, or a foreign exception without a better class.
};

// The name as it appears in JSON: "corrupt_data".
const char* to_string(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

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

// What every switch reports (honesty rule H-1): a feature that could not be applied never reports itself as on.
struct Applied {
  std::string key;        // The option: "compute.allocator".
  std::string requested;  // As written: "arena".
  std::string applied;    // What is in force now: "system".
  std::string reason;     // Why they differ; empty when they do not.
};

}  // namespace headrace
