#include <ATen/core/Tensor.h>
#include <headrace/parameter_groups.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/parameter_pattern.h"

namespace headrace {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Groups = std::vector<OptimizerGroupOptions>;

// The first group that names it; groups.size() where none does.
std::size_t group_of(const std::string& parameter, const Groups& groups) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const OptimizerGroupOptions& group) {
    return std::any_of(group.params.begin(), group.params.end(),
                       [&](const std::string& pattern) { return names_parameter(pattern, parameter); });
  });
  return static_cast<std::size_t>(found - groups.begin());
}

std::vector<std::string> names_in(const Named& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) names.push_back(name);
  return names;
}

void check_pattern(const Named& parameters, const Groups& groups, std::size_t group, const std::string& pattern) {
  bool is_known = false;
  for (const auto& [parameter, tensor] : parameters) {
    if (!names_parameter(pattern, parameter)) continue;
    if (group_of(parameter, groups) == group) return;
    is_known = true;
  }
  if (is_known) {
    fail(ErrorCode::invalid_argument,
         "train: optimizer.group[{}].params: \"{}\" names only parameters that an earlier group has", group, pattern);
  }
  fail(ErrorCode::invalid_argument, "train: optimizer.group[{}].params: \"{}\" names no parameter and no module{}",
       group, pattern, advice_on_pattern(pattern, names_in(parameters)));
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
  std::vector<std::string> modules = module_path(parameter);
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

bool is_trained(const Named::value_type& parameter) {
  return parameter.second.requires_grad();
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
    ParameterGroup all{{}, options};
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(all.parameters), is_trained);
    return std::vector<ParameterGroup>{std::move(all)};
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
      if (!is_trained(parameters[i]) || group_of(parameters[i].first, options.group) != wanted) continue;
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
