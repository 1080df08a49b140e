// Strategies in shared libraries that a recipe names.
#pragma once

#include <string>
#include <vector>

namespace headrace {

// Opens each and has it register what it has, by headrace_register_strategies() of headrace/strategy.h. They stay open
// until the process ends. Error{unsupported}: one cannot be opened, or lacks that function. What registering throws
// passes.
void load_strategies(const std::vector<std::string>& libraries);

}  // namespace headrace
