// A recipe's [[optimizer.group]] tables as groups of an optimizer.
#pragma once

#include <headrace/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace {

// Parameters in none of `options.group` come first, then each of its groups in turn; where decay_mult_1d is not 1, each
// of these is two, parameters of more than one dimension first. Empty ones are left out; within one the order is that
// of `parameters`. A group's weight_decay is the optimizer's times its multiples; its lr is the optimizer's, which its
// lr_mult scales at each update. Without groups and with decay_mult_1d = 1: one group of all.
// Error{invalid_argument} names a group without patterns, or a pattern that names no parameter, with the nearest
// name, or only parameters that an earlier group has.
std::vector<ParameterGroup> parameter_groups(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                                             const OptimizerOptions& options);

}  // namespace headrace
