#include "torch/train/parameter_groups.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
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

// "3", "encoder_layer_3", and not "layer1" or "conv1".
bool is_numbered(std::string_view module) {
  const std::size_t digits = module.find_last_not_of("0123456789") + 1;  // 0 where all are digits.
  return digits < module.size() && (digits == 0 || module[digits - 1] == '_');
}

// The outermost numbered module that the parameter is in: "layer1.0" of "layer1.0.conv1.weight"; empty: none.
std::string block_of(const std::string& parameter) {
  std::vector<std::string> modules = names_of(parameter);
  modules.pop_back();
  const auto found = std::find_if(modules.begin(), modules.end(), [](const std::string& module) {
    return is_numbered(std::string_view(module).substr(module.find_last_of('.') + 1));
  });
  return found == modules.end() ? "" : *found;
}

// What each parameter's learning rate is multiplied by.
std::vector<double> layer_mults(const Named& parameters, double layer_decay) {
  if (layer_decay == 1) return std::vector<double>(parameters.size(), 1.0);
  std::size_t blocks = 0;
  std::string block;
  std::vector<std::size_t> layers;  // 0: before the first block.
  for (const auto& [name, tensor] : parameters) {
    const std::string own = block_of(name);
    if (!own.empty() && own != block) ++blocks;
    if (!own.empty()) block = own;
    layers.push_back(blocks);
  }
  if (blocks == 0) {
    fail(ErrorCode::invalid_argument,
         "train: optimizer.layer_decay is {}; wanted a model with numbered blocks, as layer1.0, found none",
         layer_decay);
  }
  const std::size_t last = blocks + (block_of(parameters.back().first).empty() ? 1 : 0);
  for (std::size_t i = parameters.size(); i > 0 && block_of(parameters[i - 1].first).empty(); --i) layers[i - 1] = last;
  std::vector<double> mults;
  for (const std::size_t layer : layers) mults.push_back(std::pow(layer_decay, static_cast<double>(last - layer)));
  return mults;
}

// Options of one group: weight_decay has the multiple in it, and the keys that make groups are at their defaults.
OptimizerOptions with_decay(OptimizerOptions options, double decay_mult) {
  options.weight_decay *= decay_mult;
  options.decay_mult_1d = 1;
  options.layer_decay = 1;
  options.group.clear();
  return options;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const Named& parameters, const OptimizerOptions& options) {
  if (options.group.empty() && options.decay_mult_1d == 1 && options.layer_decay == 1) {
    return std::vector<ParameterGroup>{{parameters, options}};
  }
  check_groups(parameters, options.group);
  const std::vector<double> mults = layer_mults(parameters, options.layer_decay);
  const OptimizerGroupOptions as_written;
  const std::size_t count = options.group.size();
  std::vector<ParameterGroup> groups;
  for (std::size_t place = 0; place <= count; ++place) {
    const std::size_t wanted = place == 0 ? count : place - 1;  // Parameters in no group come first.
    const OptimizerGroupOptions& group = place == 0 ? as_written : options.group[wanted];
    std::map<std::pair<double, bool>, ParameterGroup> made;  // By the layer's multiple, and whether of one dimension.
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (group_of(parameters[i].first, options.group) != wanted) continue;
      const bool is_flat = options.decay_mult_1d != 1 && parameters[i].second.dim() <= 1;
      const double decay_mult = group.decay_mult * (is_flat ? options.decay_mult_1d : 1.0);
      ParameterGroup empty{{}, with_decay(options, decay_mult), group.lr_mult * mults[i]};
      const auto [entry, is_new] = made.try_emplace(std::pair{mults[i], is_flat}, std::move(empty));
      entry->second.parameters.push_back(parameters[i]);
    }
    for (auto& [key, of_layer] : made) groups.push_back(std::move(of_layer));
  }
  return groups;
}

}  // namespace headrace
