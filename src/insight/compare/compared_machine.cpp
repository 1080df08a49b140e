#include "insight/compare/compared_machine.h"

#include <fmt/format.h>

#include "core/hardware/machine.h"

namespace headrace {

std::vector<std::pair<std::string, std::string>> compared_machine() {
  const Machine machine = detect_machine();
  return {{"CPU", machine.cpu},
          {"Cores", fmt::format("{} usable of {}", machine.cores_usable, machine.cores_online)},
          {"GPU", machine.gpu}};
}

}  // namespace headrace
