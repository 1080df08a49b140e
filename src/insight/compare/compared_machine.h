// What must agree where figures are compared: the machine that they were measured on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace headrace {

// CPU, Cores and GPU of this machine, by these names.
std::vector<std::pair<std::string, std::string>> compared_machine();

}  // namespace headrace
