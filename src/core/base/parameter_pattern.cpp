#include "core/base/parameter_pattern.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/nearest_name.h"
#include "core/base/wildcard.h"

namespace headrace {

std::vector<std::string> module_path(const std::string& parameter) {
  std::vector<std::string> names;
  for (std::size_t dot = parameter.find('.'); dot != std::string::npos; dot = parameter.find('.', dot + 1)) {
    names.push_back(parameter.substr(0, dot));
  }
  names.push_back(parameter);
  return names;
}

bool names_parameter(std::string_view pattern, const std::string& parameter) {
  const std::vector<std::string> names = module_path(parameter);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); });
}

std::string advice_on_pattern(std::string_view pattern, const std::vector<std::string>& parameters) {
  std::vector<std::string> known, outermost;
  for (const std::string& parameter : parameters) {
    const std::vector<std::string> names = module_path(parameter);
    known.insert(known.end(), names.begin(), names.end());
    if (outermost.empty() || outermost.back() != names.front()) outermost.push_back(names.front());
  }
  const std::string nearest = nearest_name(known, pattern);
  if (!nearest.empty()) return fmt::format(", did you mean {}?", nearest);
  return fmt::format("; the model has {}", fmt::join(outermost, ", "));
}

}  // namespace headrace
