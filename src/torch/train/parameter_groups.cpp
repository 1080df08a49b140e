#include "torch/train/parameter_groups.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"

namespace headrace {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Groups = std::vector<OptimizerGroupOptions>;

// The whole name, with * in the pattern for any characters, or none.
bool fits(std::string_view pattern, std::string_view name) {
  std::size_t at_pattern = 0, at_name = 0;
  std::size_t star = std::string_view::npos, behind_star = 0;  // The last star, and where in the name its match ends.
  while (at_name < name.size()) {
    if (at_pattern < pattern.size() && pattern[at_pattern] == '*') {
      star = at_pattern++;
      behind_star = at_name;
    } else if (at_pattern < pattern.size() && pattern[at_pattern] == name[at_name]) {
      ++at_pattern;
      ++at_name;
    } else if (star != std::string_view::npos) {
      at_pattern = star + 1;
      at_name = ++behind_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at_pattern) == std::string_view::npos;
}

// The modules that the parameter is in, outermost first, and the parameter.
std::vector<std::string> names_of(const std::string& parameter) {
  std::vector<std::string> names;
  for (std::size_t dot = parameter.find('.'); dot != std::string::npos; dot = parameter.find('.', dot + 1)) {
    names.push_back(parameter.substr(0, dot));
  }
  names.push_back(parameter);
  return names;
}

bool includes(const std::string& pattern, const std::string& parameter) {
  const std::vector<std::string> names = names_of(parameter);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return fits(pattern, name); });
}

// The first group that names it; groups.size() where none does.
std::size_t group_of(const std::string& parameter, const Groups& groups) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const OptimizerGroupOptions& group) {
    return std::any_of(group.params.begin(), group.params.end(),
                       [&](const std::string& pattern) { return includes(pattern, parameter); });
  });
  return static_cast<std::size_t>(found - groups.begin());
}

// What the error for a pattern that names nothing ends with.
std::string advice_on(const std::string& pattern, const Named& parameters) {
  std::vector<std::string> known, outermost;
  for (const auto& [parameter, tensor] : parameters) {
    const std::vector<std::string> names = names_of(parameter);
    known.insert(known.end(), names.begin(), names.end());
    if (outermost.empty() || outermost.back() != names.front()) outermost.push_back(names.front());
  }
  const std::string nearest = nearest_name(known, pattern);
  if (!nearest.empty()) return fmt::format(", did you mean {}?", nearest);
  return fmt::format("; the model has {}", fmt::join(outermost, ", "));
}

void check_pattern(const Named& parameters, const Groups& groups, std::size_t group, const std::string& pattern) {
  bool is_known = false;
  for (const auto& [parameter, tensor] : parameters) {
    if (!includes(pattern, parameter)) continue;
    if (group_of(parameter, groups) == group) return;
    is_known = true;
  }
  if (is_known) {
    fail(ErrorCode::invalid_argument,
         "train: optimizer.group[{}].params: \"{}\" names only parameters that an earlier group has", group, pattern);
  }
  fail(ErrorCode::invalid_argument, "train: optimizer.group[{}].params: \"{}\" names no parameter and no module{}",
       group, pattern, advice_on(pattern, parameters));
}

void check_groups(const Named& parameters, const Groups& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].params.empty()) {
      fail(ErrorCode::invalid_argument,
           "train: optimizer.group[{}].params is empty; wanted names of parameters or modules", i);
    }
    for (const std::string& pattern : groups[i].params) check_pattern(parameters, groups, i, pattern);
  }
}

// Options of one group: weight_decay has the multiple in it, and the keys that make groups are at their defaults.
OptimizerOptions with_decay(OptimizerOptions options, double decay_mult) {
  options.weight_decay *= decay_mult;
  options.decay_mult_1d = 1;
  options.group.clear();
  return options;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const Named& parameters, const OptimizerOptions& options) {
  if (options.group.empty() && options.decay_mult_1d == 1) return std::vector<ParameterGroup>{{parameters, options}};
  check_groups(parameters, options.group);
  const OptimizerGroupOptions as_written;
  const std::size_t count = options.group.size();
  std::vector<ParameterGroup> groups;
  for (std::size_t place = 0; place <= count; ++place) {
    const std::size_t wanted = place == 0 ? count : place - 1;  // Parameters in no group come first.
    const OptimizerGroupOptions& group = place == 0 ? as_written : options.group[wanted];
    ParameterGroup all{{}, with_decay(options, group.decay_mult), group.lr_mult};
    ParameterGroup flat{{}, with_decay(options, group.decay_mult * options.decay_mult_1d), group.lr_mult};
    for (const auto& parameter : parameters) {
      if (group_of(parameter.first, options.group) != wanted) continue;
      const bool is_flat = options.decay_mult_1d != 1 && parameter.second.dim() <= 1;
      (is_flat ? flat : all).parameters.push_back(parameter);
    }
    for (ParameterGroup* made : {&all, &flat}) {
      if (!made->parameters.empty()) groups.push_back(std::move(*made));
    }
  }
  return groups;
}

}  // namespace headrace
