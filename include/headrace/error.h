// One exception type for a call that cannot do its job.
//
// A message is one line, starts with the module, and says what was wanted and what was found:
// "data: train-labels.gz: 59,999 labels, 60,000 images". LibTorch's c10::Error passes through and is translated once,
// at an edge.
#pragma once

#include <stdexcept>
#include <string>

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

// What every switch reports: a feature that could not be applied never reports itself as on.
struct Applied {
  std::string key;        // The option: "compute.allocator".
  std::string requested;  // As written: "arena"; "auto": whatever the program finds best.
  std::string applied;    // What is in force now: "system".
  std::string reason;     // Why it does not hold; empty when it does.

  bool holds() const { return applied == requested || requested == "auto"; }
};

}  // namespace headrace
