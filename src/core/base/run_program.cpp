#include "core/base/run_program.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

namespace headrace {

int run_program(int argc, char** argv, const std::function<void(const std::vector<std::string>& words)>& run,
                std::string_view name) {
  try {
    run(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}{}{}\n", name, name.empty() ? "" : ": ", error.what());
    return 1;
  }
}

}  // namespace headrace
