// The command line: verbs, their flags, and every recipe key as a flag.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "app/cli/invocation.h"

namespace headrace {

// A command line that asks for text alone: --help and --version (exit code 0), or `headrace` with nothing after it (2).
struct Answer {
  std::string text;
  int exit_code;
};

// `arguments` as main() got them, the program's name included. `torch_version` is what --version says about LibTorch.
// Throws Error{invalid_argument} that names the flag or verb, the nearest known one, and where help is. Recipe flags
// are only checked for their names here; their values are load_recipe's.
std::variant<Invocation, Answer> parse_arguments(const std::vector<std::string>& arguments,
                                                 const std::string& torch_version);

}  // namespace headrace
