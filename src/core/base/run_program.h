// What main() of a bench or of a test's probe is.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Runs `run` with the words after the program's name; returns the exit status, 0. A std::exception is one line on
// stderr, begun with "`name`: " unless that is empty, and status 1.
int run_program(int argc, char** argv, const std::function<void(const std::vector<std::string>& words)>& run,
                std::string_view name = {});

}  // namespace headrace
