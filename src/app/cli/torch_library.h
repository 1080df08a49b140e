// The library with the verbs that need LibTorch, opened on demand: linking it would cost every --help a quarter of a
// second.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "app/cli/invocation.h"

namespace headrace {

// libheadrace_torch.so.<version> beside the library that holds this code.
std::filesystem::path torch_library_path();

// Opens it and runs the verb; returns its exit code. Where HEADRACE_TORCH is set, or the library does not find LibTorch
// by itself (an installed one), torch_folder.h says which is taken. Error{unsupported} says what is missing: the
// library itself, or a LibTorch that it needs. Stays open until the process ends, because LibTorch cannot be unloaded.
int run_torch_verb(const Invocation& invocation);

// Why the library cannot be opened; nullopt: it can. Opens it.
std::optional<std::string> torch_library_fault();

}  // namespace headrace
